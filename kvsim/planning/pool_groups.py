"""How a release of vLLM divides its pool between the layers of a model, and which serve it."""

from __future__ import annotations

from kvsim.catalog import KvGroups, Model, kv_groups, uniform_groups
from kvsim.catalog.compressed_bytes import compresses
from kvsim.catalog.compressed_pages import ENTRY_BLOCK_TOKENS, compressed_groups
from kvsim.errors import InputError
from kvsim.planning.releases import LATEST, Release, release_of, version_of

USUAL_BLOCK_TOKENS = 16
FIRST_WITH_IMAGES, FIRST_WITHOUT = (0, 6, 2), (0, 11, 0)
"""Versions that served cross-attention to an image (vllm pulls 8811 and 24907), with engine v0."""


def fit_groups(model: Model, release: Release, *, tp: int, kv_dtype_bytes: int | None) -> KvGroups:
    """How a release divides the pool between the model's layers.

    Raises `InputError` where their blocks are not covered, or not known of this release.
    """
    if crosses(model):
        return _beside_images(model, release)
    if not compresses(model):
        groups = kv_groups(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes, rule="max_if_close")
        if groups.token_bytes and release.layer_groups in ("unified", "min"):
            raise InputError(
                f"{release.name} has no blocks for layers that all keep every token and differ in"
                f" KV bytes, as those of {model.name} do",
                where="--vllm",
                fix="Use 0.11 or later",
            )
        return kv_groups(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes, rule=release.layer_groups)
    if release.pages is None:
        raise InputError(
            f"{release.name} does not serve layers with a compressed past (compress_ratios), or"
            " not with pages that are known here",
            where="--vllm",
            fix="Use 0.21 or later",
        )
    return compressed_groups(model, release.pages)


def crosses(model: Model) -> bool:
    """Whether some layers attend to an image's tokens and keep none of the text's."""
    return any(group.kind == "cross" for group in model.groups)


def _beside_images(model: Model, release: Release) -> KvGroups:
    """Engine v0: a block has room in every layer; text and images have block tables of their own.

    So layers that read the text hold room for images, and the other way round.
    """
    if release.engine != "v0" or release.first < (0, 5, 4):
        raise InputError(
            f"{release.name} does not serve {model.name}, whose cross_attention_layers attend to"
            " an image: engine v0 alone had block tables for them, from 0.6.2 to 0.10.2",
            where="--vllm",
            fix="Use 0.10.2, the last release that did",
        )
    return uniform_groups(sum(group.layers for group in model.groups if group.kind != "none"))


def release_for(model: Model, version: str | None) -> Release:
    """The rules of a version, the latest without one, with the engine that serves the model.

    Models with cross-attention to images made 0.8 to 0.10 fall back to engine v0. Raises
    `InputError` for a version that is not understood or did not serve them yet.
    """
    if version is None:
        return LATEST
    if not crosses(model):
        return release_of(version)
    found = version_of(version)
    if found < FIRST_WITH_IMAGES:
        raise InputError(
            f"vllm {version} does not serve {model.name}: cross_attention_layers came with 0.6.2",
            where="--vllm",
            fix="Use 0.6.2 to 0.10.2",
        )
    return release_of(version, "v0" if found < FIRST_WITHOUT else "v1")


def image_tokens(model: Model) -> tuple[int, int]:
    """Fewest and most tokens of one image that cross-attention keeps; (0, 0) without any."""
    return next((group.image_tokens for group in model.groups if group.kind == "cross"), (0, 0))


def block_size_of(model: Model, asked: int) -> int:
    """As asked for; layers that compress their past have kernels for one size alone."""
    if not compresses(model):
        return asked
    if asked not in (USUAL_BLOCK_TOKENS, ENTRY_BLOCK_TOKENS):
        raise InputError(
            f"must be {ENTRY_BLOCK_TOKENS} for layers with a compressed past, got {asked}",
            where="block_size",
            fix="Leave it out",
        )
    return ENTRY_BLOCK_TOKENS
