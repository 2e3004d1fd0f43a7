"""How long the page Capacity takes for a change of a slider, beside the answer alone.

The page runs in this process as the server runs it, without a browser: what is compared is the
whole script (controls, answer, figures, texts) against `kvsim.planning.answer` with its columns.

    python benchmarks/bench_dashboard.py [--changes N]
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from apps.dashboard.launch import ENTRY
from apps.dashboard.places import DATA_VARIABLE
from kvsim.catalog import get_gpu, get_model
from kvsim.planning.answer import answer
from kvsim.planning.fit import FitSettings

LIMIT_S = 0.2
"""What a change may take."""


def seconds(work: Callable[[], object]) -> float:
    """CPU time of a call: what else runs on the machine does not count."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    """Print both, and fail above the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=30)
    changes = parser.parse_args().changes
    logging.disable(logging.CRITICAL)
    from streamlit.testing.v1 import AppTest

    with tempfile.TemporaryDirectory() as folder:
        os.environ[DATA_VARIABLE] = str(Path(folder))
        app = AppTest.from_file(str(ENTRY), default_timeout=60).run()
        page, alone = [], []
        for place in range(changes):
            share = round(0.5 + 0.4 * place / changes, 2)
            app.slider(key="util").set_value(share)
            page.append(seconds(app.run))
            given = FitSettings(gpu_memory_utilization=share)
            gpu, model = get_gpu("h100"), get_model("llama-3.1-8b")
            alone.append(seconds(lambda: answer(model, "", gpu, given)))  # noqa: B023
    whole, part = statistics.median(page), statistics.median(alone)
    print(f"a change of a slider: {1000 * whole:.0f} ms of CPU, the answer alone {1000 * part:.1f}")
    assert whole < LIMIT_S, f"above {1000 * LIMIT_S:.0f} ms"


if __name__ == "__main__":
    main()
