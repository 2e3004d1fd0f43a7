"""Runs of the same scenario under several seeds, put together into one summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvsim.results.merge import SeedOutcome, merge_seeds, merge_values
from kvsim.scenario.traffic import WorkloadSettings
from kvsim.workload.base import digest_of

NOTHING_RANDOM = "seeds make no difference: the workload has nothing random"


class SeedRun(NamedTuple):
    """All variants under one seed, on the same requests. Can be pickled."""

    seed: int
    workload: dict[str, Any]
    """`workload` of the summary."""
    content_sha256: str | None
    variants: dict[str, SeedOutcome]
    files: dict[str, dict[str, Any]]
    """By variant, what `RunFolder.write_variant` takes; empty without a run folder."""

    @property
    def requests(self) -> int:
        """Requests that reached their end, over all variants."""
        kept: int = self.workload["rows"]["kept"]
        return kept * len(self.variants)


def merged_variants(runs: Sequence[SeedRun]) -> dict[str, dict[str, Any]]:
    """The summary's `variants` (`kvsim.results.merge.merge_seeds`)."""
    return {name: merge_seeds([run.variants[name] for run in runs]) for name in runs[0].variants}


def merged_workload(settings: WorkloadSettings, runs: Sequence[SeedRun]) -> dict[str, Any]:
    """The summary's `workload` for several seeds.

    `per_seed` has each seed's digest and rows, `digest` covers all of them. `law` is a digest of
    what the seeds draw from: two runs with the same law and other seeds saw the same kind of
    traffic. Where every seed saw the same requests a note says so, and `digest` is theirs.
    """
    workloads = [run.workload for run in runs]
    digests = {str(run.seed): run.workload["digest"] for run in runs}
    merged = {**workloads[0], "rows": merge_values([entry["rows"] for entry in workloads])}
    if len(set(digests.values())) == 1:
        merged["notes"] = [*merged["notes"], NOTHING_RANDOM]
    else:
        merged["digest"] = digest_of({"seeds": digests})
    return {
        **merged,
        "law": digest_of(_law(settings, workloads[0]["source"], runs[0].content_sha256)),
        "per_seed": [
            {"seed": run.seed, "digest": run.workload["digest"], "rows": run.workload["rows"]}
            for run in runs
        ],
    }


def _law(settings: WorkloadSettings, source: str, content: str | None) -> Mapping[str, Any]:
    """What decides the requests but the seed; a file counts by its content."""
    where = {"path", "sha256", "instead_of"}
    excluded: Any = {**dict.fromkeys(where, True), "lengths": where}
    drawn = settings.model_dump(mode="json", exclude=excluded)
    return {"source": source, "content": content, "settings": drawn}
