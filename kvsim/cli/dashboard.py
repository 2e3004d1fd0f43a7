"""`kvsim dashboard`: the pages in a browser."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.console import print_json, say
from kvsim.errors import InputError

_PORTS = 20
"""Ports that are tried, from the default one up."""
DEFAULT_PORT = 8501


Runs = Annotated[
    list[Path] | None,
    typer.Option(
        help="A run folder, or a folder of them, to show beside those made here. Repeatable."
    ),
]
Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help=f"Left out, the first free one from {DEFAULT_PORT}."),
]
Host = Annotated[
    str,
    typer.Option(
        help="Address to listen on. Whoever reaches it can start runs on this machine: 127.0.0.1 is"
        " this machine only."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Where runs and uploads are kept. Left out, ~/.local/share/kvsim."),
]
MaxRun = Annotated[float, typer.Option(min=1, max=1e6, help="Seconds after which a run is ended.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the address as JSON on stdout.")]


def dashboard_command(
    runs: Runs = None,
    port: Port = None,
    host: Host = "127.0.0.1",
    data: Data = None,
    max_run_s: MaxRun = 1800.0,
    no_browser: NoBrowser = False,
    as_json: AsJson = False,
) -> None:
    """Capacity, runs, fragmentation, traces and recordings, as pages in a browser.

    It listens on this machine only, unless --host says otherwise, and asks nothing of the network.
    Ctrl-C ends it.
    """
    from apps.dashboard.launch import is_loopback, server_command, server_environment
    from apps.dashboard.places import Places, default_data

    if find_spec("streamlit") is None:
        raise InputError(
            "needs Streamlit, which is not installed",
            where="kvsim dashboard",
            fix="Install it: pip install 'kvsim[dashboard]'",
        )
    where = Places(
        (data or default_data(os.environ)).absolute(),
        tuple(_folder(one) for one in runs or []),
        max_run_s,
    )
    _make(where.data)
    chosen = _free_port(host) if port is None else port
    address = f"http://{f'[{host}]' if ':' in host else host}:{chosen}"
    if as_json:
        print_json({"url": address, "data": str(where.data), "runs": [str(r) for r in where.runs]})
    if not is_loopback(host):
        say(f"note: {host} can be reached from other machines; nobody is asked for a password.")
    say(f"dashboard: {address}")
    _serve(
        server_command(host, chosen, browser=not no_browser),
        server_environment(where, os.environ),
    )


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise InputError("is no folder", where=f"--runs {path}", fix="Name a folder with runs")
    return path.absolute()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be made: {error.strerror}",
            where=str(folder),
            fix="Name a folder that you can write to with --data",
        ) from None


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _PORTS):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except PermissionError:
                continue
            except OSError as error:
                if isinstance(error, socket.gaierror):
                    raise InputError(
                        f"{host[:80]!r} is no address of this machine",
                        where="--host",
                        fix="Use 127.0.0.1",
                    ) from None
                continue
            return port
    raise InputError(
        f"no port from {DEFAULT_PORT} to {DEFAULT_PORT + _PORTS - 1} is free on {host[:80]}",
        where="--port",
        fix="Give another one, or another --host",
    )


def _serve(command: list[str], environment: dict[str, str]) -> None:
    """Run the server until it ends or is told to."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            status = server.wait()
        except (KeyboardInterrupt, SystemExit):
            server.send_signal(signal.SIGINT)
            server.wait()
            raise
    if status:
        raise typer.Exit(status)
