"""Counters of every component, for Prometheus. Label sets are small and fixed."""

from prometheus_client import Counter, Gauge, Histogram, start_http_server

REFUSED = Counter(
    "astrolabe_refused_total", "Requests and messages that a stage refused.", ["stage", "code"]
)
BURIED = Counter("astrolabe_dead_letters_total", "Messages moved to dead.<stage>.", ["stage"])
RESULTS = Counter("astrolabe_results_total", "Results stored.", ["stage", "status"])
TAGGED = Counter(
    "astrolabe_tagged_total", "Requests tagged, by what made the estimate.", ["source"]
)
LENGTH_MODEL_LOADED = Gauge(
    "astrolabe_length_model_loaded", "0 while a tagger serves without its length model."
)
LENGTH_ANSWERS = Counter(
    "astrolabe_length_answers_total",
    "Estimates asked of the length model: computed, shared with another asker, or remembered.",
    ["how"],
)
LENGTH_SECONDS = Histogram(
    "astrolabe_length_seconds",
    "Time for the estimate of one request, its wait for a turn included.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
)
LENGTH_ERROR = Gauge(
    "astrolabe_length_error",
    "Median |ln(actual / estimated)| of the last 512 answers that ended by themselves.",
    ["model"],
)
LENGTH_BIAS = Gauge(
    "astrolabe_length_bias",
    "Median ln(actual / estimated) of the same; above 0: longer than estimated.",
    ["model"],
)
LENGTH_CORRECTION = Gauge(
    "astrolabe_length_correction",
    "What estimates for a served model are multiplied with.",
    ["model"],
)
LENGTH_EVIDENCE = Gauge(
    "astrolabe_length_evidence", "Answers that the correction was learnt from.", ["model"]
)
DISPATCHED = Counter("astrolabe_dispatched_total", "Requests put into an inbox.", ["policy"])
FALLBACKS = Counter(
    "astrolabe_dispatch_fallbacks_total",
    "Decisions made without any of the answers that the policy asked for.",
    ["reason"],
)
PROBES = Counter("astrolabe_probes_total", "Probes sent, by outcome.", ["outcome"])
DISPATCH_RETRIES = Counter(
    "astrolabe_dispatch_retries_total", "Requests put back to be dispatched later.", ["reason"]
)
RESCUED = Counter("astrolabe_rescued_total", "Requests taken from a dead instance's inbox.")
STANDING_IN = Counter(
    "astrolabe_tagger_standins_total", "Times a dispatcher began to tag for missing taggers."
)
PREDICTIONS = Counter("astrolabe_predictions_total", "Probes answered.", ["outcome"])
PREDICTION_SECONDS = Histogram(
    "astrolabe_prediction_seconds",
    "Time to answer a probe.",
    buckets=(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
)
STATE_SOURCE = Gauge(
    "astrolabe_state_source",
    "1 for where the state in use comes from, 0 for the others.",
    ["source"],
)
STATE_DROPPED = Counter("astrolabe_state_dropped_total", "State messages ignored.", ["reason"])
PREDICTION_ERROR = Gauge(
    "astrolabe_prediction_error",
    "|ln(actual / predicted)| over the last 1,024 answers that ran here.",
    ["figure", "quantile"],
)
PREDICTION_BIAS = Gauge(
    "astrolabe_prediction_bias",
    "Median ln(actual / predicted); above 0: slower than predicted.",
    ["figure"],
)
PREDICTION_DRIFT = Gauge(
    "astrolabe_prediction_drift", "Bias of E2E over the last 64 less that over the last 1,024."
)
LATEST_ERROR = Gauge(
    "astrolabe_prediction_error_latest",
    "Median error of E2E over the last 128: the simulation's, and a queue-length estimate's.",
    ["estimate"],
)
PREDICTOR_TRUSTED = Gauge(
    "astrolabe_predictor_trusted", "0 while it answers with a queue-length estimate."
)
STEP_TIME_ERROR = Gauge(
    "astrolabe_step_time_error", "Median relative error of the learnt step time, last 128 steps."
)
STEP_TIME_CHANGES = Gauge(
    "astrolabe_step_time_changes", "Times that the engine's speed was taken to have changed."
)


def serve_metrics(port: int) -> None:
    """Expose the counters on `port` of all interfaces; 0 leaves them unexposed."""
    if port:
        start_http_server(port)
