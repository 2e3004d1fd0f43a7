"""The clock of a profile: step times from constants that were measured on the device itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kvsim.catalog.explain import Fact
from kvsim.core.plan import StepPlan
from kvsim.cost.profile import Profile
from kvsim.errors import InputError

_PER_TOKEN = "s/token"


class ProfileClock:
    """Step time of the model that a profile was measured with, in one of its KV layouts.

    `tokens(M) + rows(R) + copy_s * copied tokens` plus attention: without chunks `decode_s +
    decode_row_s * n + decode_context_s * S`, with chunks (c_i new, p_i prior tokens) `prefill_s +
    chunk_s * chunks + pair_s * sum c_i * (p_i + c_i / 2) + prior_s * sum p_i + mixed_row_s * n +
    mixed_context_s * S`. M tokens and R sampling sequences in the step, n decodes with S tokens of
    context. The terms of the calibrated clock, with tables for the matrix products.
    """

    def __init__(
        self, profile: Profile, layout: str, *, scale: float = 1.0, prefill: bool = True
    ) -> None:
        """`scale` multiplies every time: the device now against the device of the profile.

        Without `prefill` chunks cost nothing beyond a step that computes one token: wrong on
        purpose, for validations that must notice it. `InputError` for a layout that was not
        measured.
        """
        constants = profile.constants.layouts.get(layout)
        if constants is None:
            known = ", ".join(profile.constants.layouts)
            raise InputError(
                f"the profile has no constants of {layout} memory, only of {known}",
                where="clock.path",
                fix="Calibrate with a scenario that has this memory, or change memory.block_size",
            )
        self.relative_error: float | None = profile.error_p90
        self.note = (
            f"measured on {profile.device} for {profile.model}: on steps that were not fitted the "
            f"error is {profile.error_median:.1%} (median), {profile.error_p90:.1%} "
            f"(90th percentile)"
        )
        self._tokens = _Table(profile.constants.tokens, scale)
        self._rows = _Table(profile.constants.rows, scale)
        self._layout = type(constants)(*(value * scale for value in constants))
        self._prefill = prefill
        self._facts = _facts(profile, layout, scale)

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""
        layout, chunks = self._layout, plan.chunks
        decodes = plan.num_decodes + plan.padded_decodes
        tokens = decodes + plan.draft_tokens
        seconds = self._rows.seconds(decodes + plan.draft_tokens + len(plan.joined))
        if chunks and self._prefill:
            seconds += layout.prefill_s + layout.chunk_s * len(chunks)
            for new, prior in chunks:
                tokens += new
                seconds += layout.pair_s * new * (prior + new / 2) + layout.prior_s * prior
            seconds += layout.mixed_row_s * decodes
            seconds += layout.mixed_context_s * plan.decode_context_tokens
        else:
            seconds += layout.decode_s + layout.decode_row_s * decodes
            seconds += layout.decode_context_s * plan.decode_context_tokens
        if plan.copies:
            seconds += layout.copy_s * sum(copy.tokens for copy in plan.copies)
        return seconds + self._tokens.seconds(max(tokens, 1))

    def explain(self) -> list[Fact]:
        """The constants and where they come from."""
        return list(self._facts)


class _Table:
    """Seconds by size: 0 for nothing, linear between the sizes and past the last."""

    def __init__(self, rows: Sequence[tuple[int, float]], scale: float) -> None:
        self._sizes = [size for size, _ in rows]
        self._seconds = [seconds * scale for _, seconds in rows]

    def seconds(self, size: int) -> float:
        """The time of a size; below the first size that of the first."""
        sizes, seconds = self._sizes, self._seconds
        if size == 0:
            return 0.0
        if size <= sizes[0] or len(sizes) == 1:
            return seconds[0]
        after = min(bisect_right(sizes, size), len(sizes) - 1)
        low, high = sizes[after - 1], sizes[after]
        share = (size - low) / (high - low)
        return max(seconds[after - 1] + share * (seconds[after] - seconds[after - 1]), 0.0)


def _facts(profile: Profile, layout: str, scale: float) -> list[Fact]:
    source = f"profile {profile.sha256[:12]}, measured on {profile.device}"
    units = {
        "decode_s": "s",
        "decode_row_s": "s/sequence",
        "decode_context_s": _PER_TOKEN,
        "prefill_s": "s",
        "chunk_s": "s/chunk",
        "pair_s": "s/(token, token)",
        "prior_s": _PER_TOKEN,
        "mixed_row_s": "s/sequence",
        "mixed_context_s": _PER_TOKEN,
        "copy_s": _PER_TOKEN,
    }
    facts = [Fact("scale", scale, "", "speed of the device against that at its calibration")]
    for name in ("tokens", "rows"):
        table = getattr(profile.constants, name)
        facts += [Fact(f"{name}({size})", seconds, "s", source) for size, seconds in table[:1]]
        facts += [Fact(f"{name}({size})", seconds, "s", source) for size, seconds in table[-1:]]
    constants = profile.constants.layouts[layout]._asdict()
    return facts + [
        Fact(f"{layout} {name}", constants[name], unit, source) for name, unit in units.items()
    ]
