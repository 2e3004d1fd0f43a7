"""What import-linter cannot say; the arrows themselves are its contracts in pyproject.toml."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "kvsim").rglob("*.py"))
SIZED = [*MODULES, *sorted((ROOT / "apps").rglob("*.py"))]
OPTIONAL = {"gpu_backend", "numba", "ray", "scipy", "streamlit", "torch", "triton"}


def _imported(nodes: Iterator[ast.AST] | list[ast.stmt]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module or ""


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "kvsim" / "core").glob("*.py")), ids=lambda p: p.stem
)
def test_the_core_imports_the_standard_library_and_itself_only(path: Path) -> None:
    for name in _imported(ast.walk(_tree(path))):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or name.startswith(("kvsim.core", "kvsim.errors"))


def test_the_core_reads_no_clock_no_file_and_no_random_number() -> None:
    banned = {"time", "datetime", "random", "secrets", "os", "io", "pathlib", "tempfile", "socket"}
    for path in (ROOT / "kvsim" / "core").glob("*.py"):
        assert not banned & set(_imported(ast.walk(_tree(path)))), path


def test_optional_packages_are_never_imported_with_a_module() -> None:
    for path in MODULES:
        tops = {name.split(".")[0] for name in _imported(_tree(path).body)}
        assert not OPTIONAL & tops, path


def test_every_module_and_function_keeps_to_its_size() -> None:
    for path in SIZED:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{path}:{node.lineno}"
