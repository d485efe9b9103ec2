"""Capacity tables, for every experiment that varies the rate."""

from evaluation.experiments.capacity_of import SLO_MS, Capacity, capacity
from evaluation.experiments.metrics import NONE, bracketed, plus_minus
from evaluation.experiments.rows import Rows
from evaluation.experiments.statistics import paired_difference
from evaluation.experiments.tables import Table

NOTE = (
    "Requests a second at which P99 TTFT reaches the SLO: mean over seeds ± half its 95 % "
    "interval. ≥ or ≤: that many seeds never, or always, broke the SLO on the grid of rates; "
    "about: some never and some always did."
)


def capacities(rows: Rows, slo_ms: float, *, down: str = "contender") -> dict[str, Capacity]:
    """Of each `down`."""
    found = {}
    for name in rows.values(down):
        some = rows.where(**{down: name})
        curves: dict[int, dict[float, float]] = {}
        for row in some:
            curves.setdefault(int(row["seed"]), {})[float(row["rate"])] = float(row["ttft_p99_ms"])
        found[str(name)] = capacity(curves, slo_ms)
    return found


def capacity_table(
    rows: Rows, title: str, *, down: str = "contender", against: str | None = None
) -> Table:
    """At every SLO; with `against`, also each one's paired difference to that."""
    columns = [down]
    by_slo = {slo_ms: capacities(rows, slo_ms, down=down) for slo_ms in SLO_MS}
    for slo_ms in SLO_MS:
        columns.append(f"SLO {slo_ms / 1000:g} s")
        if against is not None:
            columns.append(f"against {against}")
    lines = []
    for name in rows.values(down):
        line = [str(name)]
        for found in by_slo.values():
            line.append(shown(found[str(name)]))
            if against is not None:
                line.append(_difference(found, str(name), against))
        lines.append(line)
    return Table(title, columns, lines, NOTE)


def shown(found: Capacity) -> str:
    """A bound's interval would say nothing: it is left out."""
    if found.bound == "exact":
        return plus_minus(found.interval, 1)
    sign = {"at least": "≥", "at most": "≤"}.get(found.bound, "about")
    return f"{sign} {found.interval.mean:.1f} ({found.bounded} of {len(found.by_seed)})"


def as_figures(rows: Rows, *, down: str = "contender") -> dict[str, object]:
    """For summary.json."""
    return {
        f"capacity_slo_{slo_ms / 1000:g}_s": {
            name: {
                "rate": found.interval.mean,
                "low": found.interval.low,
                "high": found.interval.high,
                "bound": found.bound,
                "by_seed": {str(seed): rate for seed, rate in found.by_seed.items()},
            }
            for name, found in capacities(rows, slo_ms, down=down).items()
        }
        for slo_ms in SLO_MS
    }


def _difference(found: dict[str, Capacity], name: str, against: str) -> str:
    if name == against:
        return NONE
    one, other = found[name], found[against]
    if one.bound != "exact" or other.bound != "exact":
        return NONE
    return bracketed(paired_difference(one.by_seed, other.by_seed), 1, sign=True)
