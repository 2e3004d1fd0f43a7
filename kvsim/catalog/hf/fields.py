"""Checked access to the values of an untrusted config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.errors import InputError

LARGEST_FIELD = 10_000_000
LARGEST_POSITION = 1_000_000_000
LARGEST_LAYERS = 10_000
LARGEST_HEADS = 100_000
LARGEST_NESTING = 20
LARGEST_NODES = 1_000_000
"""Values of a whole file, list items included."""
SHOWN_CHARACTERS = 80
LARGEST_SHOWN_INTEGER = 10**18
USUAL_FIX = "Take the value from the model's own config.json"

NAMES: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_attention_groups"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "model_max_length",
        "seq_length",
        "seq_len",
        "max_seq_length",
    ),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_k",
        "moe_top_k",
        "top_k_experts",
        "moe_topk",
        "num_selected_experts",
    ),
    "expert_width": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_experts": (
        "n_shared_experts",
        "num_shared_experts",
        "num_shared_expert",
        "moe_num_shared_experts",
    ),
    "shared_width": (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "moe_shared_expert_intermediate",
        "share_expert_dim",
    ),
}
"""Spellings of one quantity, the usual one first."""


def shown(value: object) -> str:
    """A value for a message: short, whatever it is."""
    if isinstance(value, Mapping):
        return f"an object of {len(value)} fields"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"a list of {len(value)} items"
    if isinstance(value, int) and abs(value) > LARGEST_SHOWN_INTEGER:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str):
        cut = value[:SHOWN_CHARACTERS]
        return repr(cut) if cut == value else f"{cut!r}..."
    return repr(value)[:SHOWN_CHARACTERS]


def check_structure(config: Mapping[str, Any], source: str) -> None:
    """Refuses what is nested too deep or too large to be a configuration."""
    if not isinstance(config, Mapping):
        raise InputError(
            f"a configuration must be an object, got {shown(config)}", where=source, fix=USUAL_FIX
        )
    nodes, level = 0, [config]
    for _ in range(LARGEST_NESTING):
        below: list[Any] = []
        for node in level:
            # Objects may be shared: a level can be far larger than the file.
            nodes += len(node)
            if nodes > LARGEST_NODES:
                raise _too_large(source)
            items = node.values() if isinstance(node, Mapping) else node
            below += [one for one in items if isinstance(one, Mapping | list | tuple)]
        if not below:
            return
        level = below
    raise _too_large(source)


def _too_large(source: str) -> InputError:
    return InputError(
        f"the configuration has more than {LARGEST_NESTING} levels or {LARGEST_NODES} values",
        where=source,
        fix=USUAL_FIX,
    )


class Fields:
    """The values of one object of a config.json; remembers which ones were asked for."""

    def __init__(self, config: Mapping[str, Any], source: str, kind: str = "") -> None:
        self._config = config
        self.source = source
        self.kind = kind
        """model_type."""
        self.read: set[str] = set()

    def error(self, problem: str, fix: str = USUAL_FIX) -> InputError:
        """An error about this file."""
        return InputError(problem, where=self.source, fix=fix)

    def get(self, key: str) -> Any:
        """The raw value; None where it is missing."""
        self.read.add(key)
        return self._config.get(key)

    def has(self, key: str) -> bool:
        """Whether a spelling of the field has a value that is not null."""
        return any(self.get(name) is not None for name in NAMES.get(key, (key,)))

    def count(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = LARGEST_FIELD
    ) -> int:
        """A whole number in least..most under any spelling; null is as if it were missing."""
        names = NAMES.get(key, (key,))
        given = [name for name in names if self.get(name) is not None]
        key = given[0] if given else names[0]
        value = self.get(key) if given else default
        if type(value) is not int or not least <= value <= most:
            raise self.error(f"{key} must be a whole number in {least}..{most}, got {shown(value)}")
        return value

    def layers(self) -> int:
        """Number of layers."""
        return self.count("num_hidden_layers", most=LARGEST_LAYERS)

    def heads(self, key: str, default: int | None = None) -> int:
        """A number of heads."""
        return self.count(key, default, most=LARGEST_HEADS)

    def number(self, key: str, default: float | None = None, *, most: float = 1e6) -> float:
        """A positive number."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise self.error(f"{key} must be a number in 0..{most:g}, got {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false; null is the default."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, got {shown(value)}")
        return value

    def text(self, key: str) -> str | None:
        """A word; None where it is missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{key} must be a text, got {shown(value)}")
        return value

    def inner(self, key: str) -> Fields:
        """The object under `key`."""
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise self.error(f"{key} must be an object, got {shown(value)}")
        return Fields(value, self.source, self.kind)

    def items(self, key: str, length: int) -> list[Any]:
        """A list of one item per layer."""
        value = self.get(key)
        if not isinstance(value, list | tuple):
            raise self.error(f"{key} must be a list, got {shown(value)}")
        if len(value) != length:
            raise self.error(
                f"{key} has {len(value)} items for {length} layers",
                "Take both from the model's own config.json",
            )
        return list(value)

    def counts(self, key: str, length: int, *, least: int = 0) -> list[int]:
        """A list of one whole number per layer."""
        found = self.items(key, length)
        for value in found:
            if type(value) is not int or not least <= value <= LARGEST_FIELD:
                raise self.error(
                    f"items of {key} must be whole numbers in {least}..{LARGEST_FIELD}, got"
                    f" {shown(value)}"
                )
        return found

    def unsupported(self, key: str, fix: str = "") -> InputError:
        """An error for a field whose meaning for this family is not known."""
        return self.error(
            f"{key} {shown(self.get(key))} is not supported for model_type {shown(self.kind)}",
            fix or "Use a model without it",
        )

    def check_unread(self, guarded: Sequence[str]) -> None:
        """Refuses a guarded field that has a value and was not asked for."""
        for key in guarded:
            value = self._config.get(key)
            if key not in self.read and value not in (None, False, 0, "", [], {}):
                raise self.unsupported(key)
