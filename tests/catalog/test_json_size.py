"""Small JSON texts that would take a machine's memory are refused before they are parsed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_backend.validate.reader import read_validation
from kvsim.catalog.config_file import parse_config
from kvsim.catalog.json_size import check_json_size
from kvsim.cost import read_profile
from kvsim.errors import InputError
from kvsim.report.bench_result import read_bench
from kvsim.report.kernel_sizes import kernel_sizes

READERS: dict[str, Callable[[Path], Any]] = {
    "validation": read_validation,
    "profile": read_profile,
    "benchmark": read_bench,
    "kernels": lambda path: kernel_sizes(path.read_bytes(), "mine.json"),
    "config": lambda path: parse_config(path.read_bytes(), "mine.json"),
}


@pytest.mark.parametrize(("unit", "count"), [(b"[[[[]]]],", 260_000), (b"{},", 1_000_001)])
@pytest.mark.parametrize("name", READERS)
def test_a_file_of_more_lists_than_any_real_one_is_refused(
    tmp_path: Path, name: str, unit: bytes, count: int
) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(b'{"x":[' + unit * count + b"1]}")
    with pytest.raises(InputError, match=r"holds more than [0-9,]+ lists or [0-9,]+ values"):
        READERS[name](path)


def test_lists_objects_values_and_keys_are_counted() -> None:
    content = b'{"a": [1, 2], "b": {"c": 3}}'  # 3 lists and objects, 3 keys and 2 commas

    def check(max_lists: int, max_values: int) -> None:
        check_json_size(content, "f", max_lists=max_lists, max_values=max_values, fix="x")

    check(3, 5)
    for limits in ((2, 5), (3, 4)):
        with pytest.raises(InputError, match="f: holds more than"):
            check(*limits)
