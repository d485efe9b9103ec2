"""Who looks on: one connection straight to the server that hears every event of every request."""

from collections import defaultdict

from pipeline.bus import Bus, Message
from pipeline.codec import decode
from pipeline.errors import BadRequest
from pipeline.messages import OutputEvent
from pipeline.subjects import last_tokens


class Watcher:
    """Everything final that was said on the raw subjects, by request."""

    def __init__(self) -> None:
        self.finals: dict[str, list[OutputEvent]] = defaultdict(list)
        self.resumed = 0
        self.restarted = 0
        self.undecodable = 0

    async def listen(self, bus: Bus, client: str) -> None:
        await bus.subscribe(bus.subjects.output(client, "*"), self._on_event)

    def _on_event(self, message: Message) -> None:
        (request,) = last_tokens(message.subject, 1)
        try:
            event = decode(message.data, OutputEvent)
        except BadRequest:
            self.undecodable += 1
            return
        self.resumed += event.event == "resume"
        self.restarted += event.event == "restart"
        if event.final and event.attempt > 0:  # 0 is a note about a repeated publish
            self.finals[request].append(event)
