"""The stack that is broken on purpose: each component reaches the bus over a wire of its own."""

import asyncio
import signal
from collections.abc import Callable

from bench.chaos.faults import Fault
from bench.chaos.proxy import Wire
from pipeline.child import Child
from pipeline.stack import LocalStack
from pipeline.stack_settings import StackSettings


class BreakableStack(LocalStack):
    """A local stack, and what can be done to it."""

    def __init__(self, settings: StackSettings) -> None:
        super().__init__(settings)
        self._wires: dict[str, Wire] = {}
        self._ports: dict[str, int] = {}

    async def _start_nats(self) -> None:
        await super()._start_nats()
        port = int(self.url.rsplit(":", 1)[1])
        for name in component_names(self.settings):
            wire = self._wires[name] = Wire(port)
            self._ports[name] = await wire.start()

    def _spawner(self, name: str, command: tuple[str, ...]) -> Callable[[], Child]:
        own = f"nats://127.0.0.1:{self._ports[name]}"
        return super()._spawner(name, tuple(own if part == self.url else part for part in command))

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        for wire in self._wires.values():
            wire.mend()
        await super().stop(hurry)
        for wire in self._wires.values():
            await wire.close()

    async def suffer(self, fault: Fault) -> None:
        """One fault, from its beginning to the moment when the component may go on."""
        name = fault.component
        if fault.how == "kill":
            self.kill(name)
            await asyncio.sleep(fault.down_s)
            await self.restart(name)
        elif fault.how == "restart":
            await self.restart(name)
        elif fault.how == "stop":
            self.kill(name, signal.SIGSTOP)
            await asyncio.sleep(fault.down_s)
            self.kill(name, signal.SIGCONT)
        else:
            self._wires[name].cut()
            await asyncio.sleep(fault.down_s)
            self._wires[name].mend()


def component_names(settings: StackSettings) -> list[str]:
    """All but the NATS server."""
    from pipeline.stack_settings import component_commands

    return list(component_commands(settings, "nats://127.0.0.1"))
