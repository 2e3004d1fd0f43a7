"""A model in pipeline stages: each is a start of its own, the one with least room decides."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.catalog import Gpu, Model, weight_bytes
from kvsim.catalog.weights import VECTOR_BYTES
from kvsim.errors import InputError
from kvsim.planning.encoder import decoder_alone
from kvsim.planning.fit import COUNTS, Fit, FitSettings, check_counts, fit
from kvsim.planning.parallel import stage_layers, stage_weight_bytes
from kvsim.planning.releases import LATEST, Release


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of a set-up, first to last."""

    layers: tuple[int, ...]
    stages: tuple[Fit, ...]
    """Each as if it were alone; weights are its own."""

    @property
    def smallest(self) -> int:
        """The stage, from 0, whose blocks all stages get."""
        blocks = [one.start.num_blocks for one in self.stages]
        return blocks.index(min(blocks))

    @property
    def fit(self) -> Fit:
        """The answer for the whole: that of the stage with fewest blocks."""
        return self.stages[self.smallest]

    def sentence(self) -> str:
        """Which stage decides, and how its layers are."""
        return (
            f"Stage {self.smallest + 1} of {len(self.layers)} has the least room; the figures are"
            f" its own. Layers by stage: {', '.join(map(str, self.layers))}."
        )


def fit_whole(model: Model, gpu: Gpu, settings: FitSettings, *, release: Release = LATEST) -> Fit:
    """`fit`, or of several stages the one that decides."""
    if settings.pipeline_parallel_size == 1:
        return fit(model, gpu, settings, release=release)
    return fit_pipeline(model, gpu, settings, release=release).fit


def fit_pipeline(
    model: Model,
    gpu: Gpu,
    settings: FitSettings,
    *,
    release: Release = LATEST,
    partition: tuple[int, ...] | None = None,
) -> Pipeline:
    """Every stage of a model whose layers are alike, split as vLLM does.

    Embeddings are on the first stage, the head on the last. Raises `InputError` for layers of
    several kinds, whose places in the model are not known here, and as `fit` does.
    """
    check_counts(settings, COUNTS)
    if len(model.groups) > 1 or (model.moe is not None and model.moe.dense_layers):
        raise InputError(
            f"{model.name} has layers of several kinds: which of them a stage gets is not covered",
            where="--pp",
            fix="Use tensor parallelism, or a model whose layers are alike",
        )
    if settings.speculative not in (None, "ngram"):
        raise InputError(
            "a draft's layer on the last of several stages is not covered",
            where="speculative",
            fix="Use tensor parallelism, or ngram, which has no layers",
        )
    layers = stage_layers(model.layers, settings.pipeline_parallel_size, partition)
    tp = settings.tensor_parallel_size
    embedding = -(-model.vocab // tp) * model.hidden * VECTOR_BYTES
    head = embedding  # tied ones are copied to the last stage
    whole = weight_bytes(decoder_alone(model), tp=tp, experts=settings.experts)
    layer = (whole - embedding - (0 if model.tied_embeddings else head)) // model.layers
    weights = stage_weight_bytes(
        layers, layer_bytes=layer, embedding_bytes=embedding, head_bytes=head
    )
    (group,) = model.groups
    fits = []
    for count, size in zip(layers, weights, strict=True):
        stage = replace(model, groups=(replace(group, layers=count),))
        known = {"weights": size, **_towers(stage, gpu, settings, release)}
        known |= settings.measured_bytes
        alone = fit(stage, gpu, replace(settings, measured_bytes=known), release=release)
        fits.append(replace(alone, whole=model))
    return Pipeline(layers, tuple(fits))


def _towers(model: Model, gpu: Gpu, settings: FitSettings, release: Release) -> dict[str, int]:
    """Bytes of the towers, which every stage has, beside weights that are known without them."""
    if model.encoder is None or "weights" in settings.measured_bytes:
        return {}
    terms = fit(model, gpu, settings, release=release).budget.further
    return {term.name: term.bytes for term in terms if term.name == "encoder_weights"}
