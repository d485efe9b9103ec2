"""Stand-ins for an instance, where the test is about the dispatcher: heartbeats and a predictor
that says what it is told to, on the real bus."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from pipeline.bus import Bus, Lease, Message
from pipeline.codec import decode, encode
from pipeline.messages import (
    EngineLimits,
    Instance,
    LengthEstimate,
    Load,
    Prediction,
    Probe,
    TaggedRequest,
    wall_ms,
)

LIMITS = EngineLimits(
    rules="vllm",
    block_size=16,
    kv_blocks=100,
    max_num_seqs=8,
    max_num_batched_tokens=512,
    max_model_len=1024,
)


@dataclass
class FakeInstance:
    """An instance that exists on the bus only."""

    bus: Bus
    name: str
    boot: str = "b1"
    model: str = "llama"
    cost: float = 100.0
    answers: bool = True
    refuses: bool = False
    """Its predictor says that no request can ever run here."""
    in_flight: int = 0
    load: Load | None = None
    """Told to whoever asks for it."""
    probes: list[Probe] = field(default_factory=list)
    _beating: asyncio.Task[None] | None = None

    def describe(self) -> Instance:
        return Instance(
            instance=self.name,
            boot=self.boot,
            model=self.model,
            engine="fake",
            state="ready",
            limits=LIMITS,
            running=self.in_flight,
            sent_at_ms=wall_ms(),
        )

    async def start(self, *, predictor: bool = True) -> "FakeInstance":
        if predictor:
            await self.bus.subscribe(self.bus.subjects.predict(self.name), self._on_probe)
        self._beating = asyncio.create_task(self._beat())
        await asyncio.sleep(0.02)
        return self

    def die(self) -> None:
        """No heartbeat any more; the lease stays as it was."""
        assert self._beating is not None
        self._beating.cancel()

    async def _beat(self) -> None:
        lease = Lease(self.bus, self.bus.subjects.lease_key(self.name, self.boot))
        while True:
            body = encode(self.describe())
            await lease.write(body)
            await self.bus.publish(self.bus.subjects.heartbeat(self.name), body)
            await asyncio.sleep(0.5)

    def _on_probe(self, message: Message) -> None:
        probe = decode(message.data, Probe)
        self.probes.append(probe)
        if not self.answers:
            return
        if self.refuses:
            headers = {"Nats-Service-Error": "no room", "Nats-Service-Error-Code": "422"}
            self._reply = asyncio.create_task(self.bus.publish(message.reply, b"", headers=headers))
            return
        prediction = Prediction(
            instance=self.name,
            boot=self.boot,
            ttft_ms=1.0,
            e2e_ms=self.cost,
            cost=self.cost,
            state_age_ms=0.0,
            load=self.load if probe.kind == "load" else None,
        )
        self._reply = asyncio.create_task(self.bus.publish(message.reply, encode(prediction)))


def tagged(request: str = "r1", *, model: str = "default", **more: object) -> TaggedRequest:
    """A request as the tagger hands it on."""
    fields: dict[str, object] = {
        "id": request,
        "client": "c",
        "model": model,
        "request": msgspec.Raw(b'{"id":"%s","prompt":"hello"}' % request.encode()),
        "prompt_tokens": 5,
        "max_tokens": 20,
        "estimate": LengthEstimate(p10=5, p50=10, p90=20, source="test"),
        "deadline_at_ms": wall_ms() + 60_000,
        **more,
    }
    return TaggedRequest(**fields)  # type: ignore[arg-type]  # the test's own keywords


async def put(bus: Bus, request: TaggedRequest) -> None:
    """Into TAGGED."""
    await bus.jetstream.store(
        bus.subjects.tagged(request.model, request.client),
        encode(request),
        message_id=f"{request.key}.{request.attempt}",
    )
