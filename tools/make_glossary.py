"""Write the table of figures in docs/glossary.md from the definitions the reports use.

Run `python tools/make_glossary.py` after changing kvsim/report/definitions.py.
"""

from __future__ import annotations

from pathlib import Path

from kvsim.report import DEFINITIONS

START, END = "<!-- figures: start -->", "<!-- figures: end -->"
GLOSSARY = Path(__file__).resolve().parents[1] / "docs" / "glossary.md"


def figures_table() -> str:
    """One row per figure of a variant's entry in `summary.json`."""
    rows = [f"| `{path}` | {definition} |" for path, definition in DEFINITIONS.items()]
    return "\n".join(["| figure | meaning (unit) |", "|---|---|", *rows])


def with_table(text: str) -> str:
    """`text` with the table between the two marks replaced."""
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    return f"{before}{START}\n{figures_table()}\n{END}{after}"


if __name__ == "__main__":
    GLOSSARY.write_text(with_table(GLOSSARY.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {GLOSSARY}")
