"""Names on the bus: subjects, streams, consumers, headers. They are spelled nowhere else.

Nothing from a message becomes part of a subject unless it went through `check_token` or
`model_slug`: a dot or a wildcard in a name would change who receives what.
"""

import re
from dataclasses import dataclass

from pipeline.errors import BadRequest, UsageError

DEFAULT_PREFIX = "astrolabe"
DEFAULT_CLIENT = "default"
DEFAULT_MODEL = "default"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PREFIX = re.compile(r"[a-z][a-z0-9-]{0,31}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_/-]")


class Header:
    """Our headers share one prefix: the client library gives `Status` a meaning of its own."""

    MESSAGE_ID = "Nats-Msg-Id"
    EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
    TRACEPARENT = "traceparent"
    REQUEST = "Astrolabe-Request"
    ATTEMPT = "Astrolabe-Attempt"
    INSTANCE = "Astrolabe-Instance"
    STATUS = "Astrolabe-Outcome"
    PROMPT_TOKENS = "Astrolabe-Prompt-Tokens"
    MAX_TOKENS = "Astrolabe-Max-Tokens"
    ESTIMATE = "Astrolabe-Estimate"
    ESTIMATE_SOURCE = "Astrolabe-Estimate-Source"
    MODEL = "Astrolabe-Model"
    COMPLETION_TOKENS = "Astrolabe-Completion-Tokens"
    REASON = "Astrolabe-Reason"
    ORIGINAL_SUBJECT = "Astrolabe-Subject"


def valid_token(text: str) -> bool:
    """Whether `text` may stand as one token of a subject: 1-64 of A-Z a-z 0-9 _ -."""
    return _TOKEN.fullmatch(text) is not None


def check_token(text: str, field: str) -> str:
    """`text` itself if it may be one token of a subject, else BadRequest naming `field`."""
    if not valid_token(text):
        raise BadRequest(
            f"{field} must be 1-64 characters of A-Z a-z 0-9 _ -", field=field, limit=64
        )
    return text


def model_slug(model: str) -> str:
    """Subject token of a model's name: `/` and every other unsafe character becomes `_`.

    `meta-llama/Llama-3.1-8B` → `meta-llama_Llama-3_1-8B`. The true name travels in the body.
    """
    slug = _UNSAFE.sub("_", model).replace("/", "_")
    return check_token(slug, "model")


@dataclass(frozen=True, slots=True)
class Subjects:
    """All names under one prefix, so that two stacks can share a server."""

    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise UsageError(
                f"prefix {self.prefix!r}: a lower-case letter, then up to 31 of a-z 0-9 -"
            )

    # -- requests on their way
    def request(self, client: str, model: str) -> str:
        return f"{self.prefix}.request.{client}.{model}"

    def tagged(self, model: str, client: str) -> str:
        return f"{self.prefix}.tagged.{model}.{client}"

    def inbox(self, instance: str, boot: str) -> str:
        return f"{self.prefix}.inbox.{instance}.{boot}"

    def queued(self, instance: str) -> str:
        return f"{self.prefix}.queued.{instance}"

    # -- answers
    def output(self, client: str, request: str) -> str:
        return f"{self.prefix}.output.{client}.{request}"

    def result(self, client: str, request: str) -> str:
        return f"{self.prefix}.result.{client}.{request}"

    def finished(self, client: str, request: str) -> str:
        return f"{self.prefix}.finished.{client}.{request}"

    # -- control
    def cancel(self, client: str, request: str) -> str:
        return f"{self.prefix}.cancel.{client}.{request}"

    def predict(self, instance: str) -> str:
        return f"{self.prefix}.predict.{instance}"

    def state(self, instance: str) -> str:
        return f"{self.prefix}.state.{instance}"

    def heartbeat(self, instance: str) -> str:
        return f"{self.prefix}.heartbeat.{instance}"

    def drain(self, instance: str) -> str:
        """Request-reply, operator to worker."""
        return f"{self.prefix}.drain.{instance}"

    # -- records
    def history(self, client: str, model: str) -> str:
        return f"{self.prefix}.history.{client}.{model}"

    def dead(self, stage: str) -> str:
        return f"{self.prefix}.dead.{stage}"

    # -- streams, the bucket, consumers, services
    def stream(self, name: str) -> str:
        return f"{self.prefix.upper()}_{name}"

    @property
    def requests_stream(self) -> str:
        return self.stream("REQUESTS")

    @property
    def tagged_stream(self) -> str:
        return self.stream("TAGGED")

    @property
    def inbox_stream(self) -> str:
        return self.stream("INBOX")

    @property
    def results_stream(self) -> str:
        return self.stream("RESULTS")

    @property
    def cancel_stream(self) -> str:
        return self.stream("CANCEL")

    @property
    def history_stream(self) -> str:
        return self.stream("HISTORY")

    @property
    def dead_stream(self) -> str:
        return self.stream("DEAD")

    @property
    def instances_bucket(self) -> str:
        return self.stream("INSTANCES")

    def inbox_consumer(self, instance: str, boot: str) -> str:
        return f"{instance}_{boot}"

    def lease_key(self, instance: str, boot: str) -> str:
        return f"{instance}.{boot}"

    def service(self, role: str) -> str:
        """Name of a component as a NATS service."""
        return f"{self.prefix}-{role}"

    def service_ping(self, role: str) -> str:
        """Every running component of this role answers a request here."""
        return f"$SRV.PING.{self.service(role)}"

    # -- wildcards
    @property
    def all_cancels(self) -> str:
        return self.cancel("*", "*")

    @property
    def all_inboxes(self) -> str:
        return self.inbox("*", "*")

    @property
    def all_heartbeats(self) -> str:
        return self.heartbeat("*")

    @property
    def all_queued(self) -> str:
        return self.queued("*")

    @property
    def all_finished(self) -> str:
        return self.finished("*", "*")


def last_tokens(subject: str, count: int) -> list[str]:
    """The last tokens of a subject: who and what it is about, whatever the prefix."""
    return subject.rsplit(".", count)[1:]


TAGGER_CONSUMER = "tagger"
DISPATCHER_CONSUMER = "dispatcher"
