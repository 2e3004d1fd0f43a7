"""Reads a server's start-up log into typed figures."""

from __future__ import annotations

from os import PathLike

from kvsim.errors import InputError
from kvsim.startup_logs import llama_cpp, sglang, tensorrt_llm, vllm
from kvsim.startup_logs.collector import (
    Action,
    Collector,
    Hit,
    Start,
    Wordings,
    choose_figure,
    choose_setting,
)
from kvsim.startup_logs.found import StartupLog
from kvsim.startup_logs.lines import MAX_BYTES, LogLines, Source
from kvsim.startup_logs.names import FIGURES, SUMMED

SERVERS: dict[str, Wordings] = {
    "vllm": vllm.WORDINGS,
    "sglang": sglang.WORDINGS,
    "tensorrt-llm": tensorrt_llm.WORDINGS,
    "llama.cpp": llama_cpp.WORDINGS,
}

_SHORTEST = 12
_REPEATS = 4  # the same wording twice on a line: two processes wrote it without a line break
_SHARED = ("out of memory. Tried to allocate ", "Application startup complete")
_LOOKED_FOR = (
    'such as "GPU KV cache size: ... tokens" or "# GPU blocks: ..." (vLLM), "KV Cache is'
    ' allocated. #tokens: ..." (SGLang), "Allocated ... GiB for max tokens in paged KV cache"'
    ' (TensorRT-LLM), "llama_kv_cache: size = ... MiB" (llama.cpp)'
)
_FIX = "Give the server's whole output from its start, at the log level INFO or finer"


def read_startup_log(
    source: Source, *, server: str | None = None, max_bytes: int = MAX_BYTES
) -> StartupLog:
    """The settings and memory figures in a log, given as a path or as its lines.

    `server` ("vllm", "sglang", "tensorrt-llm" or "llama.cpp") is told from the wordings if it is
    None. At most `max_bytes` bytes of a file (characters of lines) are read. Raises `InputError`
    if the log cannot be read, holds no such line, or holds the lines of two servers.
    """
    if server is not None and server not in SERVERS:
        problem = f"{server[:40]!a} is no server whose logs are read"
        raise InputError(problem, where="server", fix=f"Use one of: {', '.join(SERVERS)}")
    if max_bytes < 1:
        raise InputError(f"must be >= 1 byte, got {max_bytes}", where="max_bytes")
    asked = [server] if server else list(SERVERS)
    collectors = {name: Collector() for name in asked}
    lines = LogLines(source, max_bytes=max_bytes)
    actions = [
        (key, action, collectors[name], key not in _SHARED)
        for name in asked
        for key, action in SERVERS[name].actions
    ]
    for line, text in lines:
        if len(text) >= _SHORTEST:
            for key, action, collector, telling in actions:
                if key in text:
                    booked = collector.booked
                    _apply(key, action, collector, text, line)
                    collector.own_booked += (collector.booked - booked) * telling
    where = str(source) if isinstance(source, str | PathLike) else "log"
    name = _told_by(collectors, lines, where)
    return _log(name, collectors[name], lines)


def _apply(key: str, action: Action, collector: Collector, text: str, line: int) -> None:
    begin = text.find(key)
    for _ in range(_REPEATS):
        end = begin + len(key)
        action(collector, Hit(text, begin, end, line))
        begin = text.find(key, end)
        if begin < 0:
            return


def _told_by(collectors: dict[str, Collector], lines: LogLines, where: str) -> str:
    """The one server that the log is of."""
    told = [name for name, one in collectors.items() if one.own_booked]
    figures = [name for name in told if collectors[name].last.told]
    found = figures or told
    if len(found) > 1:
        problem = f"holds start-up lines of {' and '.join(found)}"
        raise InputError(problem, where=where, fix=f"Name one with server={found[0]!r}")
    if not found:
        names = ", ".join(collectors)
        cut = " it was cut there;" if lines.cut else ""
        problem = (
            f"no start-up line of {names} in {lines.count:,} lines;{cut} looked for lines"
            f" {_LOOKED_FOR}"
        )
        raise InputError(problem, where=where, fix=_FIX)
    return found[0]


def _log(name: str, collector: Collector, lines: LogLines) -> StartupLog:
    start: Start = collector.last
    SERVERS[name].finish(start)
    figures = {
        figure: choose_figure(
            figure,
            start.figures[figure].values(),
            summed=name == "llama.cpp" and figure in SUMMED,
        )
        for figure in FIGURES
        if start.figures.get(figure)
    }
    settings = {setting: choose_setting(of) for setting, of in start.settings.items()}
    return StartupLog(
        server=name,
        version=start.version,
        engine=start.engine if name == "vllm" else None,
        settings=settings,
        figures=figures,
        refusal=start.refusal,
        ready=start.ready,
        starts=collector.starts,
        lines=lines.count,
        cut=lines.cut,
    )
