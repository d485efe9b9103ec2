"""Tables and curves that several experiments show of their rows."""

from collections.abc import Sequence

from evaluation.experiments.cells import Label
from evaluation.experiments.metrics import NONE, PREEMPTIONS, Metric, bracketed
from evaluation.experiments.plots import Curve, LinePanel
from evaluation.experiments.rows import Rows
from evaluation.experiments.statistics import paired_difference, paired_ratio
from evaluation.experiments.tables import Table

RATE_LABEL = "requests a second"
RATIO_NOTE = (
    "Geometric mean of the ratio seed by seed and its 95 % interval; under 1 is lower. "
    "Preemptions are a difference."
)


def metric_table(
    rows: Rows, metric: Metric, *, down: str = "contender", across: str = "rate", where: str = ""
) -> Table:
    """A figure's mean and interval over seeds, one line for each `down`."""
    columns = rows.values(across)
    return Table(
        f"{metric.heading}{where}",
        [down, *(f"{across} {_text(column)}" for column in columns)],
        [
            [
                _text(name),
                *(
                    metric.shown(rows.where(**{down: name, across: column}).mean(metric.figure))
                    for column in columns
                ),
            ]
            for name in rows.values(down)
        ],
    )


def several_table(
    rows: Rows, metrics: Sequence[Metric], title: str, *, down: str = "contender"
) -> Table:
    """Several figures of one setting, one line for each `down`."""
    return Table(
        title,
        [down, *(metric.heading for metric in metrics)],
        [
            [
                _text(name),
                *(
                    metric.shown(rows.where(**{down: name}).mean(metric.figure))
                    for metric in metrics
                ),
            ]
            for name in rows.values(down)
        ],
    )


def paired_table(
    rows: Rows,
    ours: Label,
    metrics: Sequence[Metric],
    title: str,
    *,
    down: str = "contender",
) -> Table:
    """`ours` against each of the others in one setting, seed by seed."""
    mine = rows.where(**{down: ours})
    lines = []
    for name in rows.values(down):
        if name == ours:
            continue
        theirs = rows.where(**{down: name})
        lines.append([_text(name), *(_against(mine, theirs, metric) for metric in metrics)])
    return Table(
        title, [f"{ours} against", *(metric.title for metric in metrics)], lines, RATIO_NOTE
    )


def against_table(
    rows: Rows,
    reference: Label,
    metrics: Sequence[Metric],
    title: str,
    *,
    down: str = "contender",
) -> Table:
    """Each of the others against `reference` in one setting, seed by seed."""
    theirs = rows.where(**{down: reference})
    return Table(
        title,
        [f"against {reference}", *(metric.title for metric in metrics)],
        [
            [
                _text(name),
                *(_against(rows.where(**{down: name}), theirs, metric) for metric in metrics),
            ]
            for name in rows.values(down)
            if name != reference
        ],
        RATIO_NOTE,
    )


def _against(mine: Rows, theirs: Rows, metric: Metric) -> str:
    my, their = mine.by_seed(metric.figure), theirs.by_seed(metric.figure)
    if metric is PREEMPTIONS:
        difference = paired_difference(my, their)
        return bracketed(metric.in_unit(difference), metric.decimals, sign=True)
    if min(*my.values(), *their.values()) <= 0:
        return NONE
    return bracketed(paired_ratio(my, their), 3)


def curves(
    rows: Rows, metric: Metric, *, down: str = "contender", across: str = "rate"
) -> list[Curve]:
    """A figure over `across`, one curve for each `down`, in the metric's unit."""
    return [
        Curve(
            _text(name),
            [float(x) for x in rows.where(**{down: name}).values(across)],
            [
                metric.in_unit(rows.where(**{down: name, across: x}).mean(metric.figure))
                for x in rows.where(**{down: name}).values(across)
            ],
        )
        for name in rows.values(down)
    ]


def line_panel(
    rows: Rows,
    metric: Metric,
    *,
    down: str = "contender",
    across: str = "rate",
    x_label: str = RATE_LABEL,
    limits: Sequence[float] = (),
) -> LinePanel:
    return LinePanel(
        metric.title,
        x_label,
        metric.heading,
        curves(rows, metric, down=down, across=across),
        log=metric.log,
        limits=limits,
    )


def _text(label: Label) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)
