"""Putting data and scripts into a page so that no text in them can leave their place."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def embed_json(value: Any) -> str:
    """JSON for a `<script type="application/json">`: ASCII, without `<`, `>` and `&`.

    So nothing in it can end the element, open a comment or be read as markup; `JSON.parse` gives
    the value back. NaN and infinity are refused.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char, escape in _ESCAPES.items():
        text = text.replace(char, escape)
    return text


def plotly_js() -> str:
    """plotly.js as installed, with the line ends that a browser sees."""
    text = files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def script_hash(script: str) -> str:
    """The source expression that lets a content security policy run exactly this script."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def content_security_policy(*scripts: str) -> str:
    """No request to anywhere; no script but these. plotly.js sets styles and draws to blobs."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src " + " ".join(map(script_hash, scripts)),
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
