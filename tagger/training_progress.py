"""A bar for a person who waits for a training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Told = Callable[[int, float, float], None]
"""Step, loss of its batch, best validation loss so far."""


@contextmanager
def shown(steps: int, done: int, console: Console) -> Iterator[Told]:
    """The bar, until the block ends."""
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  best validation {task.fields[best]:.4f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(
            "", total=steps, completed=done, loss=float("nan"), best=float("nan")
        )
        yield lambda step, loss, best: progress.update(task, completed=step, loss=loss, best=best)
