"""YAML text -> plain data that remembers its lines, within limits."""

from __future__ import annotations

import io
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kvsim.errors import InputError

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_NODES = 20_000
MAX_ALIASES = 100

KeyPath = tuple[str, ...]


class Document(NamedTuple):
    """A parsed file. Its data are dicts, lists and scalars only."""

    label: str
    """How messages name the file."""
    data: dict[str, Any]
    lines: dict[KeyPath, int]
    """1-based line of every key and list item, by path from the root."""

    def where(self, path: KeyPath) -> str:
        """`file:line` of the deepest part of `path` that the file holds."""
        for length in range(len(path), 0, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                return f"{self.label}:{line}"
        return f"{self.label}:1"


def read_document(path: Path, label: str) -> Document:
    """Parse a YAML file whose root is a mapping.

    Raises `InputError` for a file that is missing, over 1 MiB, not UTF-8 or not such YAML.
    """
    try:
        _refuse_named_pipe(path, label)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(
            "there is no such scenario file", where=label, fix="Check the path"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=label, fix="Name a file that you may read"
        ) from None
    if len(content) > MAX_BYTES:
        raise InputError(
            "the file is larger than 1 MiB, the limit for a scenario",
            where=label,
            fix="Keep traces in a file of their own and name it under workload.path",
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start} is not UTF-8 text", where=label, fix="Save the file as UTF-8"
        ) from None
    return parse_document(text, label)


def _refuse_named_pipe(path: Path, label: str) -> None:
    """Opening one waits for a writer, maybe without end; the shell's <(...) has its writer."""
    place = path.absolute()
    if path.is_fifo() and not any(place.is_relative_to(root) for root in ("/dev", "/proc")):
        raise InputError(
            "is a named pipe, which may never have anything to read",
            where=label,
            fix="Name a file, or /dev/stdin with `< the pipe`",
        )


def parse_document(text: str, label: str) -> Document:
    """Parse YAML text whose root is a mapping. Raises `InputError` with the line."""
    value, lines = _parse(text, lambda line: f"{label}:{line}")
    if not isinstance(value, dict):
        raise InputError(
            f"a scenario must be a mapping of settings, got {_kind(value)}",
            where=f"{label}:1",
            fix="Start with `version: 1`",
        )
    return Document(label, value, lines)


def yaml_text(settings: dict[str, Any]) -> str:
    """Plain data as YAML, its keys in their order and every value on a line of its own."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.width = MAX_BYTES
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    stream = io.StringIO()
    yaml.dump(settings, stream)
    return stream.getvalue()


def parse_value(text: str, where: str) -> Any:
    """Parse the value of an option as YAML: `64`, `true`, `[0, 1]`. Raises `InputError`."""
    return _parse(text, lambda _: where)[0]


def _parse(text: str, where: Callable[[int], str]) -> tuple[Any, dict[KeyPath, int]]:
    yaml = YAML(typ="safe", pure=True)
    try:
        _check_limits(yaml, text, where)
        root = yaml.compose(text)
        if root is None:
            return None, {}
        builder = _Builder(yaml, where)
        return builder.value(root, ()), builder.lines
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(
            f"is not valid YAML: {_sentence(error)}",
            where=where(mark.line + 1 if mark else 1),
            fix="Check indentation, brackets and quotes near this line",
        ) from None
    except YAMLError as error:
        problem = " ".join(str(error).split())
        raise InputError(
            f"is not valid YAML: {problem}",
            where=where(1),
            fix="Save the file as text without control characters",
        ) from None


def _check_limits(yaml: YAML, text: str, where: Callable[[int], str]) -> None:
    """Refuse what would cost too much to build. Reads events, which need no recursion."""
    depth = nodes = aliases = 0
    for event in yaml.parse(text):
        depth -= isinstance(event, CollectionEndEvent)
        if not isinstance(event, NodeEvent):
            continue
        if getattr(event, "tag", None) is not None:
            raise InputError(
                "explicit tags (!name) are not supported",
                where=where(event.start_mark.line + 1),
                fix="Write the plain value",
            )
        nodes += 1
        depth += isinstance(event, CollectionStartEvent)
        aliases += isinstance(event, AliasEvent)
        for count, limit, what in (
            (depth, MAX_DEPTH, "levels of nesting"),
            (nodes, MAX_NODES, "values"),
            (aliases, MAX_ALIASES, "aliases (*name)"),
        ):
            if count > limit:
                raise InputError(
                    f"more than {limit} {what}, the limit for a scenario",
                    where=where(event.start_mark.line + 1),
                    fix="Write a smaller file",
                )


class _Builder:
    """Turns nodes into values, with the line of every path; aliases are written out."""

    def __init__(self, yaml: YAML, where: Callable[[int], str]) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._yaml = yaml
        self._where = where
        self._visited = 0

    def value(self, node: Node, path: KeyPath) -> Any:
        self._visited += 1
        line = node.start_mark.line + 1
        # An alias can repeat a whole subtree, or contain itself.
        if self._visited > MAX_NODES or len(path) > MAX_DEPTH:
            raise InputError(
                f"aliases expand to more than {MAX_NODES} values or {MAX_DEPTH} levels",
                where=self._where(line),
                fix="Write the values out",
            )
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                key = (*path, str(index))
                self.lines.setdefault(key, item.start_mark.line + 1)
                items.append(self.value(item, key))
            return items
        return self._scalar(node)

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                raise InputError(
                    "a key must be a plain word, got a list or mapping",
                    where=self._where(line),
                    fix="Quote the key if it is meant as text",
                )
            if key_node.value == "<<":
                raise InputError(
                    "merge keys (<<) are not supported",
                    where=self._where(line),
                    fix="Write the keys out; `compare` already inherits from the base",
                )
            key = str(key_node.value)
            if key in built:
                first = self.lines[(*path, key)]
                raise InputError(
                    f"key {key!r} is given twice, first at line {first}",
                    where=self._where(line),
                    fix="Remove one of the two",
                )
            self.lines[(*path, key)] = line
            built[key] = self.value(value_node, (*path, key))
        return built

    def _scalar(self, node: Node) -> Any:
        try:
            return self._yaml.constructor.construct_object(node)
        except ValueError as error:  # for example a date without such a day
            raise InputError(
                f"value {reprlib.repr(node.value)} cannot be read: {reprlib.repr(str(error))}",
                where=self._where(node.start_mark.line + 1),
                fix="Quote it if it is a name",
            ) from None


def _sentence(error: MarkedYAMLError) -> str:
    return " ".join(str(part).strip() for part in (error.context, error.problem) if part)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", type(None): "an empty file"}
    return names.get(type(value), reprlib.repr(value))
