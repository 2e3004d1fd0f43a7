from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.scenario.document import parse_document, parse_value, read_document


def test_every_key_and_item_remembers_its_line() -> None:
    document = parse_document("version: 1\nengine:\n  a: 1\n  b: [1,\n    {c: 2}]\n", "s.yaml")
    assert document.data == {"version": 1, "engine": {"a": 1, "b": [1, {"c": 2}]}}
    assert document.lines == {
        ("version",): 1,
        ("engine",): 2,
        ("engine", "a"): 3,
        ("engine", "b"): 4,
        ("engine", "b", "0"): 4,
        ("engine", "b", "1"): 5,
        ("engine", "b", "1", "c"): 5,
    }


def test_a_key_that_is_missing_is_placed_at_its_section() -> None:
    document = parse_document("version: 1\nengine:\n  a: 1\n", "s.yaml")
    assert document.where(("engine", "b")) == "s.yaml:2"
    assert document.where(("memory", "kind")) == "s.yaml:1"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3.35e12", 3.35e12),  # PyYAML reads text
        ("yes", "yes"),  # YAML 1.1 reads true
        ("010", 10),  # YAML 1.1 reads 8
        ("1:30", "1:30"),  # YAML 1.1 reads 90
        ("true", True),
        ("~", None),
        ("", None),
        ("[0, 1]", [0, 1]),
        ("{a: 1}", {"a": 1}),
    ],
)
def test_values_are_read_by_the_rules_of_yaml_1_2(text: str, value: Any) -> None:
    assert parse_value(text, "--set x") == value


def test_an_alias_is_written_out() -> None:
    assert parse_document("a: &x {b: 1}\nc: *x\n", "s").data == {"a": {"b": 1}, "c": {"b": 1}}


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3", 3, "key 'a' is given twice, first at line 1"),
        ("a:\n  b: 1\n  b: 2", 3, "key 'b' is given twice, first at line 2"),
        ("a: [1,\n  2", 2, "not valid YAML"),
        ("a: 1\n\tb: 2", 2, "not valid YAML"),
        ("a: 1: 2", 1, "not valid YAML"),
        ("a: 1\n---\nb: 2", 2, "not valid YAML"),
        ("a: *b", 1, "undefined alias"),
        ("a: \x07", 1, "not valid YAML"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]", 2, "explicit tags"),
        ("a: 1\nb: !x 2", 2, "explicit tags"),
        ("a: &a {b: 1}\n<<: *a", 2, "merge keys"),
        ("{[1, 2]: 3}", 1, "a key must be a plain word"),
        ("a: 2024-13-45", 1, "month must be in 1..12"),
        ("a: " + "9" * 5000, 1, "cannot be read"),
        ("[" * 100_000, 1, "more than 20 levels of nesting"),
        ("\n".join(f"k{i}: 1" for i in range(20_000)), 10_000, "more than 20000 values"),
        ("a: &a {b: *a}", 1, "aliases expand"),
        (BOMB, 1, "aliases expand"),
        ("a: &a 1\nb: [" + "*a, " * 101 + "]", 2, "more than 100 aliases"),
        ("", 1, "got an empty file"),
        ("- 1", 1, "got a list"),
        ("just words", 1, "got text"),
    ],
)
def test_a_file_that_is_no_mapping_of_settings_is_refused_at_its_line(
    text: str, line: int, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        parse_document(text, "s.yaml")
    assert caught.value.where == f"s.yaml:{line}"
    assert words in caught.value.problem
    assert caught.value.fix
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: " + b"x" * (1 << 20), "larger than 1 MiB"),
        (b"a: \xff", "byte 3 is not UTF-8"),
        (b"\x1f\x8b\x08\x00", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_small_text_is_refused(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_document(path, "s.yaml")


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^s\.yaml: cannot be read"):
        read_document(tmp_path, "s.yaml")
    with pytest.raises(InputError, match=r"^s\.yaml: there is no such"):
        read_document(tmp_path / "none", "s.yaml")


def test_reading_stops_at_the_limit_of_an_endless_file() -> None:
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_document(Path("/dev/zero"), "/dev/zero")


@given(st.text(max_size=200) | st.text(alphabet="ab:&*![]{}#|>-\n \t'\"%?,<", max_size=60))
def test_any_text_is_a_document_or_an_input_error(text: str) -> None:
    try:
        document = parse_document(text, "s.yaml")
    except InputError as error:
        event(f"refused: {error.problem[:20]}")
        place = error.where or ""
    else:
        assert isinstance(document.data, dict)
        place = document.where(())
    assert place.startswith("s.yaml:")
