"""Logs that are broken, huge or made to harm: read in bounded time and memory, never echoed."""

from __future__ import annotations

import gzip
import itertools
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.startup_logs import read_startup_log
from kvsim.startup_logs.lines import MAX_BYTES, MAX_LINE, MAX_TEXTS
from tests.timing import slow

GOOD = "INFO [kv_cache_utils.py:864] GPU KV cache size: 136,080 tokens\n"
TOKENS = 136080


def _tokens(path: Path) -> object:
    return read_startup_log(path).figures["kv_tokens"].value


def test_a_line_of_100_mb_costs_seconds_and_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(GOOD.encode())
        for _ in range(100):
            file.write(b"A" * 1_000_000)
    tracemalloc.start()
    begin = time.process_time()
    log = read_startup_log(path)
    seconds = time.process_time() - begin
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log.figures["kv_tokens"].value == TOKENS
    assert log.cut
    assert seconds < slow(5)
    assert peak_bytes < 32 * 1024**2


def test_what_is_behind_a_long_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"B" * 8_000_000 + b"\n" + GOOD.encode())
    log = read_startup_log(path)
    assert (log.figures["kv_tokens"].line, log.cut) == (2, False)


def test_a_figure_far_into_a_long_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"B" * (MAX_LINE - len(GOOD) + 1) + GOOD.encode())
    assert _tokens(path) == TOKENS
    path.write_bytes(b"B" * MAX_LINE + GOOD.encode())
    with pytest.raises(InputError):
        read_startup_log(path)


SLOW = {
    "keys without an end": "To serve at least one request (" * 2000,
    "the same key again and again": "Available KV cache memory: " * 2400,
    "open brackets": "non-default args: {" + "[" * 60_000,
    "open quotes": "non-default args: {'a': " + "\\'" * 30_000,
    "many settings": "args: Namespace(" + "a=1, " * 12_000,
    "digits": "GPU KV cache size: " + "9" * 60_000,
    "commas": "GPU KV cache size: " + "1,111" * 12_000 + " tokens",
    "escapes": "\x1b[" * 30_000,
    "open escapes": "\x1b]" + "\x1b]0;" * 15_000,
    "spaces": "llama_kv_cache: size =" + " " * 60_000 + "1 MiB",
    "brackets of processes": "(a pid=" * 9000 + "Available KV cache memory: 1.00 GiB",
    "ranks": "[2025-01-01 00:00:00" + " TP0" * 15_000 + "] KV Cache is allocated. KV size: 1",
    "pairs": "Memory profiling results: " + "abcdefgh=" * 7000,
    "states of a bar": "#\r" * 30_000,
    "JSON, deeply nested": '{"log":' * 9000,
    "JSON in a list": '{"log":' + "[" * 60_000,
    "JSON with a long number": '{"log": ' + "9" * 60_000 + "}",
}


@pytest.mark.parametrize("line", SLOW.values(), ids=SLOW)
def test_no_line_takes_long(line: str) -> None:
    """Sixteen such lines, a megabyte of text, take a small part of a second each."""
    begin = time.process_time()
    log = read_startup_log([*([line] * 16), GOOD])
    assert log.figures["kv_tokens"].value == TOKENS
    assert time.process_time() - begin < slow(1.5)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["\n", "x\n", "INFO key\r", GOOD], ids=ascii)
def test_a_file_of_nothing_but_short_lines_ends(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    path.write_text(GOOD + line * (MAX_BYTES // len(line)))
    begin = time.process_time()
    log = read_startup_log(path)
    assert log.figures["kv_tokens"].value == TOKENS
    assert time.process_time() - begin < slow(20)


def test_an_endless_log_is_cut() -> None:
    begin = time.process_time()
    log = read_startup_log(itertools.chain([GOOD], itertools.repeat("")), max_bytes=1000)
    assert log.cut
    assert log.lines <= 1000
    assert time.process_time() - begin < slow(1)
    whole = read_startup_log(itertools.chain([GOOD], itertools.repeat("")))
    assert (whole.cut, whole.lines) == (True, MAX_TEXTS + 1)


def test_the_limit_of_bytes_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 99 + "\n" + GOOD)
    assert not read_startup_log(path, max_bytes=100 + len(GOOD)).cut
    with pytest.raises(InputError, match="it was cut there"):
        read_startup_log(path, max_bytes=100)
    with pytest.raises(InputError, match="max_bytes: must be >= 1 byte, got 0"):
        read_startup_log(path, max_bytes=0)


def test_escape_codes_never_come_out() -> None:
    name = "a\x1b[31mred\x1b[0m\x07\u202egpj.exe\x9b2J\x1b]0;title\x07"
    lines = [
        f"Initializing a V1 LLM engine (v0.9\x1b[1m.2) with config: model='{name}', max_seq_len=1,",
        GOOD,
    ]
    log = read_startup_log(lines)
    assert log.settings["model"].value == "aredgpj.exe"
    assert log.version == "0.9.2"
    assert repr(log).isprintable()


def test_brackets_and_quotes_in_a_value_end_nothing() -> None:
    model = """'a\\', max_seq_len=1, (\\\\'"""
    line = f"Initializing a V1 LLM engine (v1) with config: model={model}, max_seq_len=300,"
    settings = read_startup_log([line, GOOD]).settings
    assert settings["max_model_len"].value == 300
    assert settings["model"].value == model[1:-1]


def test_a_tab_is_a_space_and_a_letter_that_no_font_has_is_marked() -> None:
    line = "Initializing a V1 LLM engine\t(v1)\twith config: model='a\tb\ue000',"
    log = read_startup_log([line, GOOD])
    assert (log.version, log.settings["model"].value) == ("1", "a b\ufffd")


def test_names_keep_their_letters_in_utf_16(tmp_path: Path) -> None:
    path = tmp_path / "log"
    line = "Initializing a V1 LLM engine (v1) with config: model='модель/größe',\n"
    path.write_bytes(("\ufeff" + line + GOOD).encode("utf-16-le"))
    assert read_startup_log(path).settings["model"].value == "модель/größe"


def test_only_so_many_lists_of_arguments_are_taken_apart() -> None:
    lines = [f"non-default args: {{'max_num_seqs': {n}}}" for n in range(1, 100)]
    assert read_startup_log([*lines, GOOD]).settings["max_num_seqs"].value == 64


def test_long_text_is_shortened() -> None:
    line = "Initializing a V1 LLM engine (v1) with config: model='" + "m" * 5000 + "',"
    model = read_startup_log([line, GOOD]).settings["model"].value
    assert isinstance(model, str)
    assert len(model) == 200


ODD: dict[str, bytes] = {
    "zero bytes": GOOD.replace("KV", "K\x00V").encode(),
    "bytes that are no UTF-8": b"\xff\xfe\xfa junk \xc3\n" + GOOD.encode(),
    "Windows line ends": GOOD.replace("\n", "\r\n").encode(),
    "UTF-16 of PowerShell": ("\ufeff" + GOOD).encode("utf-16-le"),
    "UTF-16, big endian": ("\ufeff" + GOOD).encode("utf-16-be"),
    "a byte order mark": ("\ufeff" + GOOD).encode(),
    "no last line end": GOOD.rstrip().encode(),
    "a broken JSON line": b'{"log": "half\n' + GOOD.encode(),
    "JSON without a message": b'{"a": 1}\n{"log": 5}\n[1]\n' + GOOD.encode(),
    "a bar on the line": b"Loading:  0%|  | 0/4\rLoading: 100%\r" + GOOD.encode(),
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_an_odd_file_is_read(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe".join([b"", data[2:]]) if data[:2] == b"\xff\xfe" else data)
    if data.startswith(b"\xff\xfe\xfa"):
        path.write_bytes(b"x" + data)
    assert _tokens(path) == TOKENS


NUMBERS = {
    "not a number": "Available KV cache memory: nan GiB",
    "infinite": "Available KV cache memory: inf GiB",
    "an exponent": "Available KV cache memory: 1e999 GiB",
    "too many digits": "GPU KV cache size: " + "1" * 40 + " tokens",
    "digits of another script": "GPU KV cache size: ١٣٦ tokens",
    "only commas": "# GPU blocks: ,, # CPU blocks: ,,",
    "only commas for tokens": "KV Cache is allocated. #tokens: ,,",
    "only a comma of tokens": "Using , tokens in paged KV cache.",
    "no unit": "Available KV cache memory: 12.5",
    "nothing": "GPU KV cache size:  tokens",
    "a report of use": "INFO GPU KV cache usage: 24.6%, Prefix cache hit rate: 8.8%",
}


@pytest.mark.parametrize("line", NUMBERS.values(), ids=NUMBERS)
def test_what_is_no_figure_is_not_read(line: str) -> None:
    with pytest.raises(InputError, match="no start-up line"):
        read_startup_log([line])
    assert set(read_startup_log([line, GOOD]).figures) == {"kv_tokens"}


def test_settings_of_another_type_are_left_out() -> None:
    line = (
        "non-default args: {'max_model_len': 'auto', 'enforce_eager': 'maybe', 'block_size': -4, "
        "'gpu_memory_utilization': 1e400, 'max_num_seqs': 1.5, 'swap_space': nan, "
        "'tensor_parallel_size': " + "9" * 40 + ", 'model': __import__('os').abort()}"
    )
    settings = read_startup_log([line, GOOD]).settings
    assert set(settings) == {"model"}
    assert settings["model"].value == "__import__('os').abort()"


def _missing(path: Path) -> object:
    return path / "missing"


def _folder(path: Path) -> object:
    return path


def _empty(path: Path) -> object:
    (path / "log").write_bytes(b"")
    return path / "log"


def _gzip(path: Path) -> object:
    (path / "log").write_bytes(gzip.compress(GOOD.encode()))
    return path / "log"


def _numbers(path: Path) -> object:
    return [GOOD, 5]


def _other_text(path: Path) -> Iterator[str]:
    return iter(["nothing of interest here"] * 3)


def _zero_in_name(path: Path) -> object:
    return "a\x00b"


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing file": (_missing, r"missing: cannot be read: No such file.*Give the path"),
    "a folder": (_folder, "is not a regular file. Give a saved log"),
    "a device": (lambda path: "/dev/zero", "is not a regular file. Give a saved log"),
    "an empty file": (_empty, r"in 0 lines; looked for lines such as .*Give the server's whole"),
    "a packed file": (_gzip, r"is compressed \(gzip\). Unpack it first"),
    "numbers for lines": (_numbers, "log: lines must be text, got int. Give a path"),
    "other text": (_other_text, r"no start-up line of vllm, sglang, tensorrt-llm, llama\.cpp in 3"),
    "a zero byte in the path": (_zero_in_name, "Give"),
}


@pytest.mark.parametrize(("source", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_with_a_way_out(
    tmp_path: Path, source: Callable[[Path], object], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_startup_log(source(tmp_path))  # type: ignore[arg-type]
    assert str(caught.value).isprintable()


def test_a_server_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match=r"server: 'tg\\x1bi' is no server.*Use one of: vllm, sgl"):
        read_startup_log([GOOD], server="tg\x1bi")


def test_memory_that_runs_out_in_no_known_server_is_no_start_up() -> None:
    with pytest.raises(InputError, match="no start-up line"):
        read_startup_log(["CUDA out of memory. Tried to allocate 2.00 GiB."])


def test_so_many_workers_are_cut_off() -> None:
    lines = (f"(W pid={n}) Available KV cache memory: 1.00 GiB" for n in range(20_000))
    found = read_startup_log(lines).figures["available_kv_gib"]
    assert len(found.readings) == 4096
