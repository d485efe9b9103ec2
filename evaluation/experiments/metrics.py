"""The figures that tables and plots show, with the units that people read."""

from dataclasses import dataclass

from evaluation.experiments.statistics import Interval

NONE = "-"


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of `Outcome.summary()` for people."""

    figure: str
    title: str
    unit: str
    factor: float = 1.0
    """From the figure's own unit."""
    decimals: int = 2
    log: bool = False
    """Whether it grows over orders of magnitude."""

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def shown(self, interval: Interval) -> str:
        """`mean ± half the interval`."""
        return plus_minus(self.in_unit(interval), self.decimals)

    def in_unit(self, interval: Interval) -> Interval:
        return scaled(interval, self.factor)


TTFT_MEAN = Metric("ttft_mean_ms", "mean TTFT", "s", 1e-3, log=True)
TTFT_P99 = Metric("ttft_p99_ms", "P99 TTFT", "s", 1e-3, log=True)
E2E_MEAN = Metric("e2e_mean_ms", "mean E2E", "s", 1e-3)
E2E_P99 = Metric("e2e_p99_ms", "P99 E2E", "s", 1e-3, decimals=1)
SLOWDOWN_MEAN = Metric("slowdown_mean", "mean slowdown", "", decimals=2)
TPOT = Metric("tpot_mean_ms", "mean time per output token", "ms", decimals=1)
PROBES = Metric("probes", "probes a run", "", decimals=0)
PREEMPTIONS = Metric("preemptions", "preemptions", "", decimals=0)
THROUGHPUT = Metric("throughput_tokens_s", "throughput", "1,000 tokens/s", 1e-3, decimals=2)
KV_FREE = Metric("kv_free", "free KV blocks", "%", 100, decimals=1)
KV_FREE_SPREAD = Metric("kv_free_spread", "their spread over instances", "points", 100, decimals=1)
DECISION_CPU = Metric("decision_cpu_ms", "CPU a decision", "ms", decimals=3, log=True)
ERROR = Metric("e2e_error_median", "median E2E error", "%", 100, decimals=1)
BIAS = Metric("e2e_bias_median", "median E2E bias", "%", 100, decimals=1)

MAIN = (TTFT_MEAN, TTFT_P99, E2E_MEAN, PREEMPTIONS)
"""What every experiment tells."""


def scaled(interval: Interval, factor: float) -> Interval:
    return Interval(interval.mean * factor, interval.low * factor, interval.high * factor)


def plus_minus(interval: Interval, decimals: int) -> str:
    """The mean alone where there is no interval."""
    mean = f"{interval.mean:,.{decimals}f}"
    if interval.low != interval.low:
        return mean
    return f"{mean} ± {interval.high - interval.mean:,.{decimals}f}"


def bracketed(interval: Interval, decimals: int, *, sign: bool = False) -> str:
    """`mean [low, high]`, for what need not be symmetric."""
    form = f"{'+' if sign else ''},.{decimals}f"
    if interval.low != interval.low:
        return f"{interval.mean:{form}}"
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"
