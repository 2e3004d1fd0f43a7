"""What images and sound take of a start-up: the towers, the budget of their vectors, the profile.

vLLM v1 runs the towers once on as many of the largest items as its budget holds and keeps what they
give while it profiles the decoder (`profile_run`, `compute_mm_encoder_budget`, `MultiModalBudget`).
What a release counts is its `EncoderRule`; budgets and items are tested against start-up logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.catalog import GIB, Model, Term
from kvsim.catalog.encoder import ELEMENT_BYTES, Encoder, Item, Tower
from kvsim.errors import InputError
from kvsim.planning.releases import EncoderRule, Release

if TYPE_CHECKING:
    from kvsim.planning.fit import Resolved

MODALITIES = ("image", "video", "audio")
MOST_ITEMS = 1_000_000
STEP_ERROR = (0.25, 0.35)
"""Of the towers' step: two starts lie 6 % below and 7 % above it, a third is on several GPUs."""
UNKNOWN_STEP_GIB = (0.1, 1.5, 6.0)
"""Of towers or items that are not known: what start-ups with the usual ones took."""
LEFT_OUT_FIRST = ("Qwen2.5-VL's", "Llama 4's")
"""Towers that releases left out first where all limits are 0."""
SOURCE = "vLLM's profile of encoders; start-up logs"


@dataclass(frozen=True, slots=True)
class Profile:
    """The run of the towers: what the server prints about it."""

    budget_tokens: int
    """Vectors of the cache, and of one step of the towers."""
    modality: str
    items: int
    item_tokens: int
    """As the release counts them."""
    patches: int
    """Of all items."""


class EncoderPart(NamedTuple):
    """What the encoder adds to a budget."""

    weights: tuple[Term, ...] = ()
    kept: tuple[Term, ...] = ()
    """The vectors that stay for the decoder."""
    step: Term | None = None
    """The towers' step less the kept vectors: it may be larger than the decoder's."""
    profile: Profile | None = None


class Step(NamedTuple):
    """Settings of the profiling step."""

    tp: int
    max_model_len: int
    batched_tokens: int
    seqs: int


def check_limits(
    model: Model, limits: Mapping[str, int], *, only_text: bool, release: Release
) -> None:
    """`InputError` for limits of nothing, out of range, or that the model has no use for."""
    for name, value in limits.items():
        if name not in MODALITIES:
            raise InputError(
                f"{name[:40]!r} is no modality",
                where="limit_mm_per_prompt",
                fix=f"Known: {', '.join(MODALITIES)}",
            )
        if not 0 <= value <= MOST_ITEMS:
            raise InputError(
                f"{name} must be from 0 to {MOST_ITEMS:,}, got {value}", where="limit_mm_per_prompt"
            )
    if model.encoder is None and (limits or only_text):
        raise InputError(
            f"{model.name} has no encoder of images or sound that is known here",
            where="limit_mm_per_prompt" if limits else "language_model_only",
            fix="Leave it out",
        )
    rule = release.encoder
    if only_text and (rule is None or not rule.language_model_only):
        raise InputError(
            f"{release.name} has no such option",
            where="language_model_only",
            fix="Set limit_mm_per_prompt to 0 for every modality",
        )


def encoder_part(
    model: Model,
    step: Step,
    release: Release,
    *,
    limits: Mapping[str, int],
    only_text: bool = False,
    measured: Mapping[str, int] | None = None,
) -> EncoderPart:
    """Terms of the encoder; nothing for a text model.

    A measured `weights` has the towers in it and a measured `activation_peak` the vectors, as a
    server prints them; `encoder_weights` and `encoder_cache` can be given alone.
    """
    encoder, rule, known = model.encoder, release.encoder, measured or {}
    if encoder is None:
        return EncoderPart()
    read = dict.fromkeys(_modalities(encoder), rule.usual_limit if rule else 1)
    read = dict.fromkeys(read, 0) if only_text else {**read, **_of(limits, read)}
    weights = _present(_weights(model, step, rule, read, known))
    if rule is None or not any(read.values()):
        return EncoderPart(weights)
    profile = _profile(encoder, step, rule, read)
    cache = _cache(model, encoder, step, profile)
    given = "activation_peak" in known
    return EncoderPart(
        weights,
        _present(_known(cache, known, "activation_peak")),
        None if given else _step(encoder, step, profile, cache),
        profile,
    )


def _present(term: Term | None) -> tuple[Term, ...]:
    return () if term is None else (term,)


def encoder_of_fit(model: Model, flags: Resolved, release: Release) -> EncoderPart:
    """`encoder_part` of a set-up; raises as `check_limits` does."""
    given = flags.given
    limits, only_text = given.limit_mm_per_prompt, given.language_model_only
    check_limits(model, limits, only_text=only_text, release=release)
    step = Step(
        flags.tensor_parallel_size,
        flags.max_model_len,
        flags.max_num_batched_tokens,
        flags.max_num_seqs,
    )
    known = given.measured_bytes
    return encoder_part(model, step, release, limits=limits, only_text=only_text, measured=known)


def decoder_alone(model: Model) -> Model:
    """The model without the towers' share of its checkpoint's bytes, where that is known."""
    encoder, size = model.encoder, model.checkpoint_bytes
    if encoder is None or size is None or not encoder.exact:
        return model
    rest = size - ELEMENT_BYTES * encoder.elements
    return replace(model, checkpoint_bytes=rest) if rest > 0 else model


def _modalities(encoder: Encoder) -> tuple[str, ...]:
    found = {tower.modality for tower in encoder.towers} | {one.modality for one in encoder.items}
    return tuple(one for one in MODALITIES if one in found)


def _of(limits: Mapping[str, int], read: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in limits.items() if name in read}


def _known(term: Term, known: Mapping[str, int], within: str) -> Term | None:
    """The term, its measured value, or None where the one it is printed within is measured."""
    value = known.get(term.name)
    if value is not None:
        return Term(term.name, value, value, value, formula="given", source="measured")
    return None if within in known else term


def _weights(
    model: Model,
    step: Step,
    rule: EncoderRule | None,
    read: Mapping[str, int],
    known: Mapping[str, int],
) -> Term | None:
    """The towers that are loaded; None where there are none, or the checkpoint has them in it."""
    encoder = model.encoder
    assert encoder is not None
    if model.checkpoint_bytes is not None and not encoder.exact:
        return None
    leaves_out = "never" if rule is None else rule.leaves_out
    loaded = [one for one in encoder.towers if leaves_out != "all" or _is_read(one, read)]
    if not loaded:
        return None
    whole = _bytes(loaded, step.tp) + ELEMENT_BYTES * step.batched_tokens * encoder.buffer_width
    share = sum(one.low for one in loaded) / sum(one.elements for one in loaded)
    low = round(share * whole)
    high = max(whole, ELEMENT_BYTES * sum(one.high for one in loaded))
    size = whole
    if leaves_out == "some" and not any(_is_read(one, read) for one in loaded):
        low, size = 0, 0 if loaded[0].name in LEFT_OUT_FIRST else whole
    names = " and ".join(one.name for one in loaded)
    count = sum(one.elements for one in loaded)
    formula = f"{names}: {count:,} parameters by shape in 16 bits on one of {step.tp} GPUs"
    if encoder.buffer_width:
        formula += (
            f", and {step.batched_tokens:,} max_num_batched_tokens * {encoder.buffer_width:,} * 2 B"
        )
    term = Term("encoder_weights", size, low, high, formula, "vision_config, audio_config")
    return _known(term, known, "weights")


def _bytes(towers: list[Tower], tp: int) -> int:
    return Encoder(tuple(towers)).weight_bytes(tp)


def _is_read(tower: Tower, read: Mapping[str, int]) -> bool:
    names = ("audio",) if tower.modality == "audio" else ("image", "video")
    return any(read.get(name, 0) for name in names)


def _profile(
    encoder: Encoder, step: Step, rule: EncoderRule, read: Mapping[str, int]
) -> Profile | None:
    """The largest item and how many of it; None where no item is known.

    Of two as large, releases that count vectors alone take the later by name.
    """
    sized = []
    for item in encoder.items:
        if read.get(item.modality, 0):
            pieces = _pieces(encoder, item, step, rule, read)
            tokens = pieces * (item.tokens if rule.counts_text else item.embeds)
            sized.append((tokens, item.modality, pieces * item.patches))
    if not sized:
        return None
    most = max(one[0] for one in sized)
    ties = [one for one in sized if one[0] == most]
    tokens, modality, patches = ties[0] if rule.counts_text else max(ties)
    budget = max(step.batched_tokens, tokens)
    held = -(-budget // tokens) if rule.rounds_up else budget // tokens
    limit = read[modality]
    if rule.usual_limit > 1:
        limit = max(1, min(limit, step.max_model_len // tokens))
    items = max(1, min(held, step.seqs * limit))
    return Profile(budget, modality, items, tokens, items * patches)


def _pieces(
    encoder: Encoder, item: Item, step: Step, rule: EncoderRule, read: Mapping[str, int]
) -> int:
    """Pairs of frames of a video that a context has room for; 1 for anything else."""
    if item.most_pieces == 1:
        return 1
    room, videos = step.max_model_len, 1
    if rule.video_after_images:
        image = next((one.tokens for one in encoder.items if one.modality == "image"), 0)
        room -= image * read.get("image", 0)
        videos = read[item.modality]
    frames = 2 * (max(room, 0) // item.tokens) // videos
    return min(max(-(-frames // 2), 1), item.most_pieces)


def _cache(model: Model, encoder: Encoder, step: Step, profile: Profile | None) -> Term:
    """The vectors that the profile keeps; above them as many as the budget holds."""
    width = encoder.width or model.hidden
    if profile is None:
        size = ELEMENT_BYTES * step.batched_tokens * width
        formula = (
            f"up to {step.batched_tokens:,} max_num_batched_tokens * {width:,} * 2 B; the largest"
            " item is not known"
        )
        return Term("encoder_cache", size, 0, 2 * size, formula, SOURCE)
    size = ELEMENT_BYTES * profile.items * profile.item_tokens * width
    formula = (
        f"{profile.items:,} {profile.modality} * {profile.item_tokens:,} tokens * {width:,} * 2 B;"
        f" budget max(max_num_batched_tokens {step.batched_tokens:,}, {profile.item_tokens:,}"
        f" tokens of the largest {profile.modality}) = {profile.budget_tokens:,} tokens"
    )
    high = ELEMENT_BYTES * profile.budget_tokens * width
    return Term("encoder_cache", size, size, max(size, high), formula, SOURCE)


def _step(encoder: Encoder, step: Step, profile: Profile | None, cache: Term) -> Term:
    """The towers' step less what is kept of it, which has a line of its own."""
    if profile is None or not encoder.inner:
        low, middle, high = (round(one * GIB) for one in UNKNOWN_STEP_GIB)
        formula = "the towers' step, 0.1 to 6 GiB where they are not known"
        return Term("encoder_step", middle, low, high, formula, SOURCE)
    size = encoder.step_bytes(profile.patches, step.tp)
    below, above = STEP_ERROR
    formula = (
        f"the towers' step less encoder_cache: {profile.patches:,} patches *"
        f" ({encoder.inner:,} / tp + {encoder.kept:,}) * 2 B"
    )
    return Term(
        "encoder_step",
        size - cache.bytes,
        round(size * (1 - below)) - cache.bytes,
        round(size * (1 + above)) - cache.bytes,
        formula,
        SOURCE,
    )
