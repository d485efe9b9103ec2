"""Streams, the registry bucket and the durable consumers: made and checked by whoever starts.

Every stream is bounded in count and bytes. Work queues refuse when full (`discard: new`), also
per subject, so one client or one instance cannot fill them for the others; they have no `max_age`,
since that would delete work in flight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from pipeline.bus.jetstream import ApiError
from pipeline.errors import BusMisconfigured
from pipeline.messages import PROMPT_BYTES_MAX
from pipeline.subjects import DISPATCHER_CONSUMER, TAGGER_CONSUMER, Subjects

if TYPE_CHECKING:
    from pipeline.bus.connection import Bus

log = structlog.get_logger()

SECOND_NS = 1_000_000_000
MIB = 1024 * 1024

MAX_PAYLOAD_MIN = 8 * MIB
"""A prompt of PROMPT_BYTES_MAX, every byte of it escaped in JSON (six for one), and room."""
HOP_ROOM_BYTES = 256 * 1024
"""What later hops may add to a request."""
assert 6 * PROMPT_BYTES_MAX + HOP_ROOM_BYTES < MAX_PAYLOAD_MIN  # noqa: S101  a fact of this file

RESULT_AGE_S = 15 * 60
RESULTS_MAX = 100_000
REQUEST_QUEUE_MAX = 100_000
REQUESTS_PER_CLIENT_AND_MODEL_MAX = 20_000
INBOX_PER_INSTANCE_MAX = 1_024
LEASE_TTL_S = 15 * 60
"""Long, so that a boot that was called dead still finds that when it wakes up. Who lives is told by
heartbeats, not by this."""
ACK_WAIT_QUICK_S = 2.0  # stages whose work takes milliseconds
ACK_WAIT_INBOX_S = 20.0  # generation takes longer, and is kept alive
INBOX_INACTIVE_S = 10 * 60
IN_HAND_MAX_PER_CONSUMER = 4_096

STREAM_NAME_IN_USE = 10058
NO_STORAGE = (10047, 10023)


def stream_configs(subjects: Subjects) -> list[dict[str, object]]:
    """Configurations of all streams, as JetStream's API takes them."""
    p = subjects.prefix
    # Ids stay known for as long as results do: a repeated request finds one or the other.
    known = RESULT_AGE_S * SECOND_NS
    queue = {
        "retention": "workqueue",
        "discard": "new",
        "discard_new_per_subject": True,
        "max_msgs": REQUEST_QUEUE_MAX,
        "max_bytes": 1024 * MIB,
        "duplicate_window": known,
        "allow_direct": True,
    }
    return [
        {
            "name": subjects.requests_stream,
            "subjects": [f"{p}.request.*.*"],
            "max_msgs_per_subject": REQUESTS_PER_CLIENT_AND_MODEL_MAX,
            **queue,
        },
        {
            "name": subjects.tagged_stream,
            "subjects": [f"{p}.tagged.*.*"],
            "max_msgs_per_subject": REQUESTS_PER_CLIENT_AND_MODEL_MAX,
            **queue,
        },
        {
            "name": subjects.inbox_stream,
            "subjects": [f"{p}.inbox.*.*"],
            "max_msgs_per_subject": INBOX_PER_INSTANCE_MAX,
            "republish": {
                "src": f"{p}.inbox.*.*",
                "dest": f"{p}.queued.{{{{wildcard(1)}}}}",
                "headers_only": True,
            },
            **queue,
        },
        {
            "name": subjects.results_stream,
            "subjects": [f"{p}.result.*.*"],
            "max_age": RESULT_AGE_S * SECOND_NS,
            "max_msgs": RESULTS_MAX,
            "max_msgs_per_subject": 1,
            "max_bytes": 2048 * MIB,
            "discard": "old",
            "allow_direct": True,
            "republish": {
                "src": f"{p}.result.*.*",
                "dest": f"{p}.finished.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}",
                "headers_only": True,
            },
        },
        {
            "name": subjects.cancel_stream,
            "subjects": [f"{p}.cancel.*.*"],
            "max_age": RESULT_AGE_S * SECOND_NS,
            "max_msgs": 10_000,
            "max_msgs_per_subject": 1,
            "max_bytes": 16 * MIB,
            "max_msg_size": 4096,
            "discard": "old",
            "allow_direct": True,
        },
        {
            "name": subjects.history_stream,
            "subjects": [f"{p}.history.*.*"],
            "max_age": 24 * 3600 * SECOND_NS,
            "max_msgs": 1_000_000,
            "max_bytes": 4096 * MIB,
            "discard": "old",
            "allow_direct": True,
        },
        {
            "name": subjects.dead_stream,
            "subjects": [f"{p}.dead.*"],
            "max_age": 7 * 24 * 3600 * SECOND_NS,
            "max_msgs": 10_000,
            "max_bytes": 256 * MIB,
            "discard": "old",
            "allow_direct": True,
        },
        {
            # A key-value bucket by its own convention, so that `nats kv` can show it.
            "name": f"KV_{subjects.instances_bucket}",
            "subjects": [f"$KV.{subjects.instances_bucket}.>"],
            "max_age": LEASE_TTL_S * SECOND_NS,
            "max_msgs": 100_000,
            "max_msgs_per_subject": 1,
            "max_bytes": 64 * MIB,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "duplicate_window": LEASE_TTL_S * SECOND_NS,
        },
    ]


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A durable pull consumer of a work queue.

    `max_deliver` is -1: only runs that ended in a crash count against a request, and our own
    header counts those; a message parked by the server would be a request without an answer.
    """

    stream: str
    name: str
    filter_subject: str
    ack_wait_s: float
    inactive_s: float | None = None

    async def ensure(self, bus: "Bus") -> None:
        """Create it; harmless where it is there already."""
        config: dict[str, object] = {
            "durable_name": self.name,
            "name": self.name,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": int(self.ack_wait_s * SECOND_NS),
            "max_deliver": -1,
            "max_ack_pending": IN_HAND_MAX_PER_CONSUMER,
            "filter_subject": self.filter_subject,
            "replay_policy": "instant",
        }
        if self.inactive_s is not None:
            config["inactive_threshold"] = int(self.inactive_s * SECOND_NS)
        await bus.jetstream.api(
            f"CONSUMER.CREATE.{self.stream}.{self.name}.{self.filter_subject}",
            {"stream_name": self.stream, "config": config},
        )


def tagger_consumer(subjects: Subjects) -> ConsumerSpec:
    return ConsumerSpec(
        subjects.requests_stream,
        TAGGER_CONSUMER,
        f"{subjects.prefix}.request.*.*",
        ACK_WAIT_QUICK_S,
    )


def dispatcher_consumer(subjects: Subjects) -> ConsumerSpec:
    return ConsumerSpec(
        subjects.tagged_stream,
        DISPATCHER_CONSUMER,
        f"{subjects.prefix}.tagged.*.*",
        ACK_WAIT_QUICK_S,
    )


def inbox_consumer(subjects: Subjects, instance: str, boot: str) -> ConsumerSpec:
    return ConsumerSpec(
        subjects.inbox_stream,
        subjects.inbox_consumer(instance, boot),
        subjects.inbox(instance, boot),
        ACK_WAIT_INBOX_S,
        INBOX_INACTIVE_S,
    )


async def ensure_topology(bus: "Bus") -> None:
    """Create what is missing and check the server. Raises BusMisconfigured, in one line."""
    bus.check_server(MAX_PAYLOAD_MIN)
    for config in stream_configs(bus.subjects):
        await _ensure_stream(bus, {"storage": "file", "num_replicas": 1, **config})


async def _ensure_stream(bus: "Bus", config: Mapping[str, object]) -> None:
    name = config["name"]
    try:
        await bus.jetstream.api(f"STREAM.CREATE.{name}", config)
        return
    except ApiError as error:
        if error.err_code != STREAM_NAME_IN_USE:
            raise BusMisconfigured(_stream_advice(str(name), error)) from error
    # It exists with other limits: an older version's, or an operator's replicas.
    current = (await bus.jetstream.stream_info(str(name)))["config"]
    wanted = {**config, "num_replicas": current.get("num_replicas", 1)}
    try:
        await bus.jetstream.api(f"STREAM.UPDATE.{name}", wanted)
    except ApiError as error:
        raise BusMisconfigured(_stream_advice(str(name), error)) from error
    log.info("stream_updated", stream=name)


def _stream_advice(name: str, error: ApiError) -> str:
    if error.err_code in NO_STORAGE:
        return (
            f"stream {name}: the server's JetStream storage is too small ({error}); "
            "raise max_file_store in its jetstream block"
        )
    return f"stream {name} cannot be made as needed: {error}"
