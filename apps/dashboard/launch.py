"""How the dashboard's server is started."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from apps.dashboard.places import DATA_VARIABLE, MAX_RUN_S_VARIABLE, RUNS_VARIABLE, Places

ENTRY = Path(__file__).with_name("app.py")
MAX_UPLOAD_MB = 50


def server_command(host: str, port: int, *, browser: bool) -> list[str]:
    """The command line of the server, with every setting that safety needs.

    Streamlit would else look for settings in the working directory and the home directory; what is
    given here wins.
    """
    loopback = is_loopback(host)
    settings = {
        "server.address": host,
        "server.port": port,
        "server.headless": not browser,
        "server.enableXsrfProtection": True,
        "server.enableCORS": True,
        "server.maxUploadSize": MAX_UPLOAD_MB,
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": False,
        "server.enableStaticServing": False,
        "browser.gatherUsageStats": False,
        "runner.magicEnabled": False,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": False,
        "global.developmentMode": False,
        "logger.level": "warning",
    }
    flags = [f"--{name}={_text(value)}" for name, value in settings.items()]
    if loopback:  # a page of another name that resolves to this machine is none of ours
        names = dict.fromkeys(("localhost", "127.0.0.1", host, f"[{host}]"))
        flags += [f"--server.allowedHosts={name}" for name in names]
    return [sys.executable, "-P", "-m", "streamlit", "run", str(ENTRY), *flags]


def server_environment(where: Places, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the server: the folders are told by it, never by an address."""
    return {
        **environ,
        DATA_VARIABLE: str(where.data),
        RUNS_VARIABLE: os.pathsep.join(map(str, where.runs)),
        MAX_RUN_S_VARIABLE: str(where.max_run_s),
    }


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
