"""Records what an installed vLLM's own scheduler decides; see docs/verification.md.

Runs from any folder and without installing kvsim.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools.vllm_recorder.cli import main

    sys.exit(main())
