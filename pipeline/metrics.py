"""What every component counts, for Prometheus. Label sets are small and fixed.

A process exports all of these; what another component does stays at zero, or has no labels yet.
Names that vLLM has, without its prefix, mean what they mean there, with the pipeline as the server:
a request arrives when it is accepted.
"""

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from pipeline.errors import UsageError

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""From one hop of the bus to the default deadline."""

# -- every component
COMPONENT = Gauge(
    "astrolabe_component_info", "1; joins a scrape target to its name.", ["component", "name"]
)
LOOP_LAG = Histogram(
    "astrolabe_event_loop_lag_seconds",
    "How late the event loop wakes a task that slept.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
)
RECONNECTS = Counter("astrolabe_bus_reconnects_total", "Reconnects to the NATS server.")
REDELIVERIES = Counter(
    "astrolabe_redeliveries_total",
    "Messages of a work queue that came a second time or more, handed back ones included.",
    ["stream"],
)
WORK_FAILED = Counter(
    "astrolabe_work_failed_total", "Handlers of a work queue that raised.", ["stream"]
)

# -- dispatchers look at the bus for all
STREAM_MESSAGES = Gauge("astrolabe_stream_messages", "Messages in a stream.", ["stream"])
STREAM_BYTES = Gauge("astrolabe_stream_bytes", "Bytes in a stream.", ["stream"])
QUEUE_PENDING = Gauge(
    "astrolabe_queue_pending", "Stored and not delivered yet, of a shared work queue.", ["stream"]
)
QUEUE_IN_HAND = Gauge(
    "astrolabe_queue_in_hand", "Delivered and not settled yet, of a shared work queue.", ["stream"]
)
QUEUE_PULLS = Gauge(
    "astrolabe_queue_pulls", "Standing demand at a shared work queue; 0: nobody takes.", ["stream"]
)
INSTANCES_ALIVE = Gauge("astrolabe_instances_alive", "Instances that this dispatcher hears.")
PROBE_SECONDS = Histogram(
    "astrolabe_probe_seconds",
    "Time from a probe to its answer, as the dispatcher sees it.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0),
)

# -- workers, when a request ends
STAGE_SECONDS = Histogram(
    "astrolabe_stage_seconds",
    "Time of a request in one stage, by the clocks of the hosts that it went through.",
    ["stage"],
    buckets=SECONDS,
)
TIME_TO_FIRST_TOKEN = Histogram(
    "astrolabe_time_to_first_token_seconds",
    "From acceptance to the first token of the attempt that ended the request.",
    buckets=SECONDS,
)
TIME_PER_OUTPUT_TOKEN = Histogram(
    "astrolabe_request_time_per_output_token_seconds",
    "Mean time between two tokens of a request.",
    buckets=(0.003, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0),
)
E2E_LATENCY = Histogram(
    "astrolabe_e2e_request_latency_seconds",
    "From acceptance to the stored result.",
    buckets=SECONDS,
)
PROMPT_TOKENS = Counter("astrolabe_prompt_tokens_total", "Prompt tokens of ended requests.")
GENERATION_TOKENS = Counter("astrolabe_generation_tokens_total", "Tokens generated for them.")

# -- workers, once a second
REQUESTS_RUNNING = Gauge("astrolabe_num_requests_running", "Requests in the engine's batch.")
REQUESTS_WAITING = Gauge(
    "astrolabe_num_requests_waiting", "Requests that the worker holds and the engine does not run."
)
INBOX_PENDING = Gauge("astrolabe_inbox_pending", "Requests in the inbox that nobody has taken.")
KV_CACHE_USAGE = Gauge("astrolabe_kv_cache_usage_perc", "KV cache usage; 1 is all of it.")
PREEMPTIONS = Counter("astrolabe_num_preemptions_total", "Preemptions by the engine.")

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
    """Expose the counters on `port` of all interfaces; 0 leaves them unexposed.

    Raises UsageError where the port is taken.
    """
    if not port:
        return
    try:
        start_http_server(port)
    except OSError as error:
        raise UsageError(f"--metrics-port {port}: {error.strerror or error}") from error
