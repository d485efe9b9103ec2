"""Open-loop load: each request goes out when it is due, whatever became of the others."""

import asyncio
import time
from collections.abc import Sequence

from evaluation.rivals.seen import Seen, Send
from evaluation.rivals.workload import Arrival


async def drive(send: Send, arrivals: Sequence[Arrival]) -> list[Seen]:
    """Send all of them against one clock; what was seen of each, in their order."""
    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for arrival in arrivals:
            due_at = started + arrival.at_s
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            tasks.append(group.create_task(send(arrival, due_at)))
    return [task.result() for task in tasks]
