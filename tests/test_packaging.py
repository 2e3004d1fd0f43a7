from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_code_data_and_scenarios_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {
        "kvsim",
        "gpu_backend",
        "apps",
        "kvsim-0.1.0.dist-info",
    }
    assert {
        "kvsim/py.typed",
        "kvsim/catalog/data/models.json",
        "kvsim/catalog/data/gpus.json",
        "gpu_backend/validate/templates/validation.html.j2",
        "apps/dashboard/app.py",
        "apps/dashboard/views/capacity.py",
        "kvsim/report/templates/report.html.j2",
        "kvsim/report/templates/report.css",
        "kvsim/report/templates/report.js",
        "kvsim/workload/presets/azure-conv-2023.json",
        "kvsim/workload/length_presets/sharegpt.json",
        "kvsim-0.1.0.dist-info/licenses/LICENSE",
    } <= names
    scenarios = ROOT / "scenarios"
    shipped = {path.relative_to(scenarios).as_posix() for path in scenarios.rglob("*.yaml")}
    assert {f"kvsim/_scenarios/{name}" for name in shipped} <= names


def test_the_core_install_stays_small(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = message_from_bytes(archive.read("kvsim-0.1.0.dist-info/METADATA"))
    required = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert {re.split("[<>=]", line)[0] for line in required} == {
        "jinja2",
        "numpy",
        "plotly",
        "prometheus-client",
        "pyarrow",
        "pydantic",
        "rich",
        "ruamel-yaml",
        "simpy",
        "typer",
    }
    assert set(metadata.get_all("Provides-Extra") or []) == {"gpu", "dashboard", "ray", "dev"}


def test_a_shipped_scenario_runs_by_name_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, 'site'); import kvsim;"
        " assert 'site' in kvsim.__file__, kvsim.__file__;"
        " from kvsim.cli import main; main()"
    )
    command = [sys.executable, "-I", "-c", code, "run", "quickstart", "--json"]
    limit = ["--set", "workload.num_requests=20"]
    subprocess.run([*command, *limit], cwd=tmp_path, check=True, capture_output=True)


def test_the_dashboard_opens_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, 'site');"
        " from apps.dashboard.launch import ENTRY; assert 'site' in str(ENTRY), ENTRY;"
        " from streamlit.testing.v1 import AppTest;"
        " app = AppTest.from_file(str(ENTRY), default_timeout=60).run();"
        " assert not app.exception, app.exception;"
        " assert [one.label for one in app.metric][0] == 'KV pool of a GPU'"
    )
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True)
