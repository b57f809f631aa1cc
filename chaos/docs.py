"""The table in the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaos.case import Result
from chaos.report import markdown

PAGE: Final = Path(__file__).parents[1] / "docs" / "how-it-is-tested.md"
BEGIN: Final = "<!-- chaos table: written by ./dev chaos --write-docs -->"
END: Final = "<!-- end of the chaos table -->"


def write_docs(results: Sequence[Result]) -> None:
    """Replace the table on the page by one of these results."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{docs_section(results)}\n{END}{after}", encoding="utf-8")


def docs_section(results: Sequence[Result]) -> str:
    """Return the table with its totals."""
    strikes, grants = sum(r.strikes for r in results), sum(r.grants for r in results)
    promised = sum(r.overlaps for r in results if r.promised)
    return (
        f"{len(results)} cases, {strikes:,} faults, {grants:,} grants. Two holders at once where "
        f"exclusion is promised: {promised}. Stale writes refused by the fenced register: "
        f"{sum(r.refused for r in results)}. Updates lost by the unfenced register: "
        f"{sum(r.unfenced_lost for r in results)}.\n\n{markdown(results)}"
    )


def cases_on(page: str) -> list[tuple[str, str]]:
    """Return the store and the fault of every row of the table on a page."""
    lines = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| ")]
    return [(cells[1].strip(), cells[2].strip()) for cells in rows[1:]]
