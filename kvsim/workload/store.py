"""Named public traces, looked for in the user's own folder. Nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kvsim.errors import InputError
from kvsim.workload.source import ReadRules, content_sha256

TRACES_VARIABLE = "KVSIM_TRACES"


class KnownTrace(NamedTuple):
    """A public trace: `sha256` is that of the uncompressed file, `rows` of its complete form."""

    file_name: str
    sha256: str
    rows: int
    licence: str
    url: str
    """The page about it."""

    @property
    def how_to_get(self) -> str:
        """The start of a sentence: what to download and how to call it, or where to look."""
        if "/blob/" not in self.url:
            return f"Get, from {self.url}, {self.file_name}"
        raw = self.url.replace("github.com", "raw.githubusercontent.com").replace("/blob/", "/")
        return f"Download {raw} as {self.file_name}"


_AZURE = "https://github.com/Azure/AzurePublicDataset/blob/master/data/"
_MOONCAKE = "https://github.com/kvcache-ai/Mooncake/blob/main/FAST25-release/traces/"

KNOWN_TRACES: dict[str, KnownTrace] = {
    "azure-conv-2023": KnownTrace(
        "AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        19_366,
        "CC-BY-4.0",
        _AZURE + "AzureLLMInferenceTrace_conv.csv",
    ),
    "azure-code-2023": KnownTrace(
        "AzureLLMInferenceTrace_code.csv",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        8_819,
        "CC-BY-4.0",
        _AZURE + "AzureLLMInferenceTrace_code.csv",
    ),
    "mooncake-conversation": KnownTrace(
        "mooncake_conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        12_031,
        "Apache-2.0",
        _MOONCAKE + "conversation_trace.jsonl",
    ),
    "mooncake-synthetic": KnownTrace(
        "mooncake_synthetic_trace.jsonl",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        3_993,
        "Apache-2.0",
        _MOONCAKE + "synthetic_trace.jsonl",
    ),
    "sharegpt-opt-lengths": KnownTrace(
        "sharegpt_opt_lengths.csv",
        "f4ba887196d6498aa351ca14d102884aca70d7f9a683d8e3dbb637cc32937658",
        84_226,
        "none stated",
        "https://github.com/sosp-ae-39/sosp-ae-astra",
    ),
    "sharegpt-8k-lengths": KnownTrace(
        "sharegpt_8k_lengths_llama2.csv",
        "6d6c296302a853e2669a674a96f269283e60c57e60363bd450588a1066919f9f",
        30_731,
        "Apache-2.0",
        "https://github.com/project-etalon/etalon",
    ),
    "bwb-lengths": KnownTrace(
        "bwb_lengths_llama2.csv",
        "389419d2f2e55149b5d6ccfedb881572798d39650436ab86fd61f3c40337a990",
        33_768,
        "MIT",
        "https://github.com/microsoft/vidur",
    ),
    "arxiv-summarization-lengths": KnownTrace(
        "arxiv_summarization_lengths_llama2.csv",
        "9d3580538d915ca75e4aaaa54590b42dbb17abc6d74c8913310cf07c232adcdc",
        28_257,
        "MIT",
        "https://github.com/microsoft/vidur",
    ),
}


def find_trace(name: str, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file of a known trace in the folder `$KVSIM_TRACES`, plain or `.gz`; None if not there.

    Raises `InputError` for a name that is not known and for a file with another content.
    """
    known = KNOWN_TRACES.get(name)
    if known is None:
        raise InputError(
            f"{name!r} is no known trace",
            where="trace",
            fix=f"Use a path, or one of: {', '.join(sorted(KNOWN_TRACES))}",
        )
    folder = (os.environ if environ is None else environ).get(TRACES_VARIABLE)
    if not folder:
        return None
    for file_name in (known.file_name, known.file_name + ".gz"):
        path = Path(folder) / file_name
        if _is_file(path):
            _check_content(path, known)
            return path
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # for example a name longer than any folder may have
        return False


def _check_content(path: Path, known: KnownTrace) -> None:
    found = content_sha256(path, ReadRules())
    if found != known.sha256:
        raise InputError(
            f"the content's SHA-256 is {found}, expected {known.sha256}",
            where=str(path),
            fix=f"Fetch the original again ({known.how_to_get}), or name your own file by its path",
        )
