"""Validation: simulated against measured on a device."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from apps.dashboard import uploads
from apps.dashboard import validation_parts as parts
from apps.dashboard.cached import here
from apps.dashboard.places import validation_files
from apps.dashboard.ui import BIND, definitions, guarded, md, share_link
from apps.dashboard.upload_control import choose, upload_control, uploader
from gpu_backend.validate.definitions import CONSTANTS, DEFINITIONS, FRAMEWORK_DEFINITIONS

RESULT, PROFILE = "Results", "Profile"


def show_result() -> None:
    """A validation that was found or uploaded."""
    found: dict[str, Path] = validation_files(here())
    kept = uploads.kept_of_kind(here().uploads, "validation")
    names = {one.upload_id: one.name for one in kept}
    found |= {one.upload_id: one.path for one in kept}
    with st.expander("Upload a result", expanded=not found):
        uploader(
            "validation", "What `kvsim validate --json-out FILE` wrote", "result", types=("json",)
        )
    name = choose("Validation", list(found), "result", "validation")
    if not found:
        st.info(
            "No validation was found. Make one where the package's extra `gpu` is installed, and"
            " start the dashboard with its folder:"
        )
        st.code(
            "kvsim calibrate validate-cpu --device cpu --out profile.json\n"
            "kvsim validate validate-cpu --profile profile.json"
            " --json-out validations/validate-cpu.json\n"
            "kvsim dashboard --runs validations",
            language=None,
        )
    if name is None:
        return
    if name in names:
        st.caption(f"uploaded as {md(names[name])}")
    document = parts.document_of(found[name], names.get(name, name))
    parts.show_verdict(document)
    parts.show_variant(document)
    parts.show_rates(document)
    parts.show_controls(document)
    parts.show_conditions(document)
    parts.show_framework(document)
    parts.show_exports(document, name)
    entries = {**DEFINITIONS, **(FRAMEWORK_DEFINITIONS if document["framework"] else {})}
    definitions(dict(entries.values()))


def show_profile() -> None:
    """An uploaded profile."""
    upload_id = upload_control(
        "profile", "What `kvsim calibrate` wrote", "profile", types=("json",)
    )
    if upload_id is not None:
        parts.show_profile(parts.profile_of(upload_id))
    errors = (DEFINITIONS[name] for name in ("error", "median", "bias", "noise"))
    definitions({**dict(errors), **CONSTANTS})


title, link = st.columns([5, 1], vertical_alignment="bottom")
title.title("Validation")
kind = st.segmented_control(
    "What to look at",
    (RESULT, PROFILE),
    default=RESULT,
    required=True,
    key="showing",
    bind=BIND,
    label_visibility="collapsed",
)
with guarded():
    if kind == PROFILE:
        show_profile()
    else:
        show_result()
with link:
    share_link()
