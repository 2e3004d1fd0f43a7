"""The code on docs/kernels.md: the plain version is right, the excerpts are the kernels' own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from gpu_backend import reference
from gpu_backend.kernels import common
from tests.gpu_backend.kernels.poisoned import Shape, batch

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kernels.md"
CODE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_plain_version_computes_attention() -> None:
    names: dict[str, Any] = {}
    exec(CODE[0], names)  # noqa: S102 - our own page
    shape = Shape()
    case = batch(shape, [0, 1, 11])
    expected = reference.paged_decode(*case.paged, case.context_lens, **shape.paged_options)
    keys, values = case.key_cache.tolist(), case.value_cache.tolist()
    for seq, context in enumerate(case.context_lens.tolist()):
        query, table = case.query[seq].tolist(), case.block_table[seq].tolist()
        found = names["paged_attention"](query, keys, values, table, context, shape.head_dim**-0.5)
        assert torch.allclose(torch.tensor(found, dtype=torch.float64), expected[seq])


def test_the_excerpts_are_verbatim_but_for_line_breaks() -> None:
    source = "".join(Path(common.__file__).read_text(encoding="utf-8").split())
    assert len(CODE) == 3
    for excerpt in CODE[1:]:
        assert "".join(excerpt.split()) in source, excerpt
