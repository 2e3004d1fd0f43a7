"""What runs although no recording of the real scheduler covers it."""

from __future__ import annotations

from collections.abc import Mapping

from kvsim.catalog.model import MlaAttention
from kvsim.scenario.settings import Scenario
from kvsim.scenario.sizing import Sizing, size_server


def unproven(settings: Scenario, sizing: Sizing) -> tuple[str, ...]:
    """One sentence for each, for the reader of the results."""
    engine, notes = settings.engine, []
    if engine.scheduler != "vllm" or settings.memory.kind != "paged":
        return ()
    model, drafts = sizing.model, engine.speculative_config
    if model is not None and isinstance(model.attention, MlaAttention):
        notes.append(
            f"{model.name} keeps latent KV, which is scheduled as one group of full-attention"
            " layers: not proven against the real scheduler"
        )
    groups = sizing.groups
    if model is not None and groups.has("chunked", "state"):
        kept = "keep a state" if groups.has("state") else "attend to their chunk only"
        notes.append(f"{model.name} has layers that {kept}: not proven against the real scheduler")
    if model is not None and sizing.block_size > settings.memory.block_size:
        notes.append(
            f"blocks hold {sizing.block_size} tokens instead of {settings.memory.block_size}: as"
            " many bytes of a layer as its state takes"
        )
    if drafts is not None and not groups.is_uniform:
        notes.append(
            "drafts for a model with sliding-window layers: not proven against the real scheduler"
        )
    by_model = drafts is not None and drafts.method == "draft_model"
    if by_model and engine.scheduling_policy == "priority":
        notes.append(
            "priorities together with drafts of a draft model: not proven against the real"
            " scheduler"
        )
    return tuple(notes)


def variant_notes(variants: Mapping[str, Scenario]) -> list[str]:
    """The sentences of all variants, each once, with those it is about."""
    about: dict[str, list[str]] = {}
    for name, settings in variants.items():
        for note in unproven(settings, size_server(settings)):
            about.setdefault(note, []).append(name)
    return [
        f"{'every variant' if len(names) == len(variants) > 1 else ', '.join(names)}: {note}"
        for note, names in about.items()
    ]
