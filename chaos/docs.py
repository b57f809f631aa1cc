"""The table in the documentation, and the figures behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

from chaos.case import Result
from chaos.faults import FAULTS
from chaos.report import matrix
from chaos.targets import TARGETS

ROOT: Final = Path(__file__).parents[1]
LAST_RUN: Final = ROOT / "chaos" / "last_run.json"
PAGE: Final = ROOT / "docs" / "how-it-is-tested.md"
BEGIN: Final = "<!-- chaos table: written by ./dev chaos --write-docs -->"
END: Final = "<!-- end of the chaos table -->"


def write_docs(results: Sequence[Result]) -> None:
    """Replace older results of the same stores by these, and write the table."""
    stores = {result.store for result in results}
    kept = [result for result in last_run() if result.store not in stores]
    everything = sorted([*kept, *results], key=lambda r: (list(TARGETS).index(r.store),))
    lines = [json.dumps(_figures(result)) for result in everything]
    LAST_RUN.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(
        f"{before}{BEGIN}\n\n{docs_section(everything)}\n{END}{after}", encoding="utf-8"
    )


def docs_section(results: Sequence[Result]) -> str:
    """Return the table with its totals."""
    shown = [store for store in TARGETS if any(result.store == store for result in results)]
    strikes, grants = sum(r.strikes for r in results), sum(r.grants for r in results)
    promised = sum(r.overlaps for r in results if r.promised)
    return (
        f"{len(results)} cases, {strikes:,} faults, {grants:,} grants. Two holders at once where "
        f"exclusion is promised: {promised}. Stale writes refused by the fenced register: "
        f"{sum(r.refused for r in results)}. Updates lost by the unfenced register: "
        f"{sum(r.unfenced_lost for r in results)}.\n\n{matrix(results, shown, list(FAULTS))}"
    )


def last_run() -> list[Result]:
    """Return the results in the repository."""
    if not LAST_RUN.exists():
        return []
    return [Result(**figures) for figures in json.loads(LAST_RUN.read_text(encoding="utf-8"))]


def _figures(result: Result) -> dict[str, object]:
    dropped = {"entries", "namespace", "outcomes"}
    everything = asdict(result)
    return {f.name: everything[f.name] for f in fields(result) if f.name not in dropped}
