"""What a simulation answers, whichever way it was computed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Horizon = Literal["newcomer", "all"]
"""Until when a simulation runs: the newcomer has finished, or everybody present has."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the newcomer would experience. Times are ms from now.

    Unless said otherwise a figure covers the time until the newcomer has finished.
    """

    ttft_ms: float
    e2e_ms: float
    tpot_ms: float
    """Mean time between its tokens after the first; 0 for an answer of one token."""
    preemptions: int
    """Of any request."""
    kv_blocks_peak: int
    steps: int
    """Of the engine."""
    extrapolated: bool = False
    """The bound on the simulation came first; e2e_ms, and ttft_ms if there was no token yet, go on
    from the mean step until then."""
    finish_ms: Mapping[str, float] = field(default_factory=dict)
    """By key: the newcomer and those that finish before it; with horizon `all` everybody, unless
    it is extrapolated."""
    preemptions_horizon: int = 0
    """Of any request, until the end of the horizon."""
    kv_blocks_free_min: int = 0
    never_fits: tuple[str, ...] = ()
    """Present, but left out: even alone in the engine they would not fit."""
    horizon: Horizon = "newcomer"
    others_delay_ms: float | None = None
    """What `marginal_delay_ms` would say, where it is known anyway."""


@dataclass(frozen=True, slots=True)
class Base:
    """What happens to those present if nobody comes."""

    finish_ms: Mapping[str, float]
    preemptions: int
    kv_blocks_peak: int
    steps: int
    extrapolated: bool = False
    """The bound on the simulation came first: some have no finish time."""
    never_fits: tuple[str, ...] = ()

    @property
    def empty_ms(self) -> float:
        """When the last one has finished."""
        return max(self.finish_ms.values(), default=0.0)


def marginal_delay_ms(base: Base, forecast: Forecast) -> float:
    """Summed delay that the newcomer causes to those present. Of a forecast for them all.

    It can be negative: a preemption that now hits another request can let several finish sooner.
    """
    if forecast.others_delay_ms is not None:
        return forecast.others_delay_ms
    if forecast.horizon != "all":
        raise ValueError("a forecast that ends with the newcomer does not know everybody's delay")
    finish_ms = forecast.finish_ms
    return sum(finish_ms[key] - ms for key, ms in base.finish_ms.items() if key in finish_ms)


class LazyTimes(Mapping[str, float]):
    """Finish times that are put together when somebody asks: few do, and it can cost more than
    the forecast that they belong to."""

    def __init__(self, make: Callable[[], dict[str, float]]) -> None:
        self._make = make
        self._made: dict[str, float] | None = None

    def _times(self) -> dict[str, float]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: str) -> float:
        return self._times()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._times())

    def __len__(self) -> int:
        return len(self._times())
