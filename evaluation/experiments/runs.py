"""Many cells, in several processes: progress on screen, failures named, Ctrl-C without debris."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from evaluation.experiments.cells import Cell, Figures, Row, run_cell
from evaluation.experiments.kept import KeptFigures
from pipeline.errors import AstrolabeError

LINE_EVERY_S = 30.0
NAMED_MAX = 5

Advance = Callable[[], None]


class CellsFailed(AstrolabeError):
    """Some cells raised; the others were run and kept."""


@dataclass(frozen=True, slots=True)
class _Done:
    """What a process sends back: figures, or the traceback of what went wrong."""

    figures: Figures | None
    failure: str | None = None


def run_cells(
    cells: Sequence[Cell], kept: KeptFigures, *, jobs: int, title: str, console: Console
) -> list[Row]:
    """A row for each cell, in their order; cells with the same content are run once.

    One that fails loses no other: its traceback is printed, and CellsFailed, which names it, is
    raised when all are done. With one job they run in this process.
    """
    wanted = {cell.key(): cell for cell in cells}
    found = {key: known for key, cell in wanted.items() if (known := kept.find(cell)) is not None}
    # In order of their keys, which is as good as shuffled: so the time that is left can be told.
    missing = {key: wanted[key] for key in sorted(wanted) if key not in found}
    failed: list[str] = []
    with _progress(title, len(wanted), len(wanted) - len(missing), console) as advance:
        for key, done in _run(missing, jobs):
            if done.figures is not None:
                found[key] = done.figures
                kept.keep(wanted[key], done.figures)
            else:
                failed.append(wanted[key].name)
                console.print(f"{wanted[key].name}\n{done.failure}", markup=False, style="red")
            advance()
    if failed:
        more = f" and {len(failed) - NAMED_MAX} more" if len(failed) > NAMED_MAX else ""
        raise CellsFailed(
            f"{title}: {len(failed)} of {len(wanted)} cells failed: "
            f"{'; '.join(failed[:NAMED_MAX])}{more}"
        )
    return [cell.row(found[cell.key()]) for cell in cells]


def _run(cells: dict[str, Cell], jobs: int) -> Iterator[tuple[str, _Done]]:
    if jobs == 1 or len(cells) <= 1:
        for key, cell in cells.items():
            yield key, _attempt(cell)
        return
    # Spawned, not forked: the parent has threads, and every platform behaves the same.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(jobs, len(cells)), mp_context=context, initializer=_die_with_the_parent
    )
    try:
        futures = {pool.submit(_attempt, cell): key for key, cell in cells.items()}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                yield futures[future], _Done(None, "its process, or one beside it, was killed\n")
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    pool.shutdown()


def _die_with_the_parent() -> None:
    """Ctrl-C reaches the whole group, and only the parent has something to say about it. Where the
    parent alone is killed, nobody would tell its processes, and they would go on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_die_after, args=(parent.sentinel,), daemon=True).start()


def _die_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _attempt(cell: Cell) -> _Done:
    try:
        return _Done(run_cell(cell))
    except Exception:  # whatever it is, the other cells are worth having
        return _Done(None, traceback.format_exc())


@contextmanager
def _progress(title: str, total: int, done: int, console: Console) -> Iterator[Advance]:
    """A bar, or a line now and then where there is no terminal."""
    if not console.is_terminal:
        yield _line_printer(title, total, done, console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total - done)
        progress.update(task, description=f"{title} ({done} kept)" if done else title)
        yield lambda: progress.advance(task)


def _line_printer(title: str, total: int, done: int, console: Console) -> Advance:
    started = printed_at = time.monotonic()
    before = done
    console.print(f"{title}: {total} cells, {done} of them kept from before", highlight=False)

    def advance() -> None:
        nonlocal done, printed_at
        done += 1
        now = time.monotonic()
        if now - printed_at >= LINE_EVERY_S and done < total:
            printed_at = now
            left_s = (now - started) / (done - before) * (total - done)
            console.print(f"{title}: {done} of {total} cells, {left_s:.0f} s left", highlight=False)

    return advance
