"""Every test module of this package needs the extra `gpu`; without it, each is skipped."""

import pytest

for name in ("torch", "triton"):
    pytest.importorskip(name, reason=f"needs {name}, of the extra gpu: pip install 'kvsim[gpu]'")
