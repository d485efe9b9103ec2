"""A table once, for the screen and for Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

import rich.table
from rich.markup import escape


@dataclass(frozen=True, slots=True)
class Table:
    """The first column is text, all others are numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    """What a reader has to know to read it."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.headings)}")

    def markdown(self) -> str:
        lines = [
            f"**{self.title}**",
            "",
            _line(self.headings),
            _line(["---", *["---:"] * (len(self.headings) - 1)]),
            *(_line([cell.replace("|", r"\|") for cell in row]) for row in self.rows),
        ]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines)

    def rich(self) -> rich.table.Table:
        table = rich.table.Table(
            title=self.title,
            title_justify="left",
            title_style="bold",
            caption=self.note or None,
            caption_justify="left",
            box=None,
            padding=(0, 2, 0, 0),
            header_style="underline",
        )
        for number, heading in enumerate(self.headings):
            table.add_column(
                escape(heading), justify="right" if number else "left", no_wrap=not number
            )
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
