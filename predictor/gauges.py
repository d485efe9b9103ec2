"""The predictor's record of itself as Prometheus gauges; docs/operations.md says what to do."""

from typing import get_args

from pipeline.messages import StateSource
from pipeline.metrics import (
    LATEST_ERROR,
    PREDICTION_BIAS,
    PREDICTION_DRIFT,
    PREDICTION_ERROR,
    PREDICTOR_TRUSTED,
    STATE_SOURCE,
    STEP_TIME_CHANGES,
    STEP_TIME_ERROR,
)
from predictor.fit import OnlineFit
from predictor.trust import Quality


def show(quality: Quality, fit: OnlineFit | None, source: StateSource | None) -> None:
    """As of now. One predictor a process."""
    for quantile, error in (
        ("0.5", quality.error_p50),
        ("0.9", quality.error_p90),
        ("0.99", quality.error_p99),
    ):
        PREDICTION_ERROR.labels("e2e", quantile).set(error)
    PREDICTION_ERROR.labels("ttft", "0.5").set(quality.ttft_error_p50)
    PREDICTION_BIAS.labels("e2e").set(quality.bias)
    PREDICTION_BIAS.labels("ttft").set(quality.ttft_bias)
    PREDICTION_DRIFT.set(quality.drift)
    LATEST_ERROR.labels("simulation").set(quality.recent_error_p50)
    LATEST_ERROR.labels("queue_length").set(quality.plain_error_p50)
    PREDICTOR_TRUSTED.set(quality.trusted)
    for name in get_args(StateSource):
        STATE_SOURCE.labels(name).set(name == source)
    if fit is not None:
        STEP_TIME_ERROR.set(fit.error)
        STEP_TIME_CHANGES.set(fit.changes)
