"""Tables of lengths, and how rows are taken from them.

Every source ends in one `LengthTable`: files, the synthetic model, the bus's own results. A
workload takes its rows from it either in random order, or as one stretch with its time stamps.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pipeline.errors import UsageError

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class EstimateTable:
    """What was said of the answer lengths of n requests, and what said it."""

    quantiles: Floats
    """p10, p50, p90 in tokens, [n, 3], at least 1, never falling along a row."""
    source: str

    def take(self, rows: npt.NDArray[np.intp]) -> "EstimateTable":
        """The rows with these numbers, in this order."""
        return replace(self, quantiles=self.quantiles[rows])


@dataclass(frozen=True, slots=True, eq=False)
class LengthTable:
    """Prompt and answer lengths of n requests. Arrays are read-only; rows stay together.

    Raises UsageError, naming the table, for lengths below 1 and for columns that do not match.
    """

    name: str
    prompt_tokens: Tokens
    """[n], at least 1."""
    response_tokens: Tokens
    """[n], at least 1."""
    at_ms: Floats | None = None
    """[n], never falling: when each came, where the source tells."""
    max_tokens: Tokens | None = None
    """[n]: the client's own limit, 0 where it set none."""
    estimates: EstimateTable | None = None
    """A length model's, where the source has kept them."""
    _response_sorted: Tokens = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = len(self.prompt_tokens)
        if rows == 0:
            raise UsageError(f"{self.name}: no rows")
        columns = (self.response_tokens, self.at_ms, self.max_tokens)
        if any(column is not None and column.shape != (rows,) for column in columns):
            raise UsageError(f"{self.name}: columns of different lengths")
        if self.estimates is not None and self.estimates.quantiles.shape != (rows, 3):
            raise UsageError(f"{self.name}: estimates must be p10, p50, p90 of each row")
        for title in ("prompt_tokens", "response_tokens"):
            if getattr(self, title).min() < 1:
                raise UsageError(f"{self.name}: {title} must be at least 1")
        if self.at_ms is not None and np.any(np.diff(self.at_ms) < 0):
            raise UsageError(f"{self.name}: at_ms must never fall")
        for column in (self.prompt_tokens, *columns):
            if column is not None:
                column.flags.writeable = False  # tables are shared between workloads
        object.__setattr__(self, "_response_sorted", np.sort(self.response_tokens))

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def response_sorted(self) -> Tokens:
        """Answer lengths, shortest first: their empirical distribution."""
        return self._response_sorted

    def take(self, rows: npt.NDArray[np.intp], *, timed: bool = False) -> "LengthTable":
        """The rows with these numbers, in this order; with their time stamps only if `timed`."""
        return LengthTable(
            name=self.name,
            prompt_tokens=self.prompt_tokens[rows],
            response_tokens=self.response_tokens[rows],
            at_ms=self.at_ms[rows] if timed and self.at_ms is not None else None,
            max_tokens=None if self.max_tokens is None else self.max_tokens[rows],
            estimates=None if self.estimates is None else self.estimates.take(rows),
        )

    def fitting(self, max_model_len: int) -> "LengthTable":
        """The rows whose prompt and answer fit the model together. Raises UsageError for none."""
        fits = self.prompt_tokens + self.response_tokens <= max_model_len
        if fits.all():
            return self
        if not fits.any():
            raise UsageError(
                f"{self.name}: no row has prompt + response within max_model_len {max_model_len}"
            )
        return self.take(np.flatnonzero(fits), timed=True)


def sample(table: LengthTable, requests: int, rng: np.random.Generator) -> LengthTable:
    """`requests` rows in random order, without replacement.

    Where more are wanted than the table has, it is gone through again in a new order: no row comes
    a second time before all came once. Fewer requests get the beginning of what more would get.
    """
    rounds = -(-requests // len(table))
    order = np.concatenate([rng.permutation(len(table)) for _ in range(rounds)])
    return table.take(order[:requests])


def stretch(
    table: LengthTable, requests: int, rng: np.random.Generator
) -> tuple[LengthTable, Floats]:
    """`requests` rows in a row from a random start on, and their time stamps in ms, [requests].

    Raises UsageError for a table without time stamps, and for more rows than it has: a trace that
    began anew would have a seam that nobody recorded.
    """
    if table.at_ms is None:
        raise UsageError(f"{table.name}: has no time stamps; take arrivals by rate instead")
    if requests > len(table):
        raise UsageError(f"{table.name}: {requests} requests wanted, the trace has {len(table)}")
    start = int(rng.integers(len(table) - requests + 1))
    rows = np.arange(start, start + requests)
    return table.take(rows), table.at_ms[rows]
