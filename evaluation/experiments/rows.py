"""Rows of finished cells, and what can be asked of them."""

from collections.abc import Iterable, Iterator

from evaluation.experiments.cells import Label, Row
from evaluation.experiments.statistics import Interval, mean_interval


class Rows:
    """Some rows, in the order of their cells."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, **labels: Label) -> "Rows":
        """Those with these labels. Raises KeyError, naming them, where there are none."""
        found = [
            row for row in self._rows if all(row[title] == label for title, label in labels.items())
        ]
        if not found:
            raise KeyError(f"no rows with {labels}")
        return Rows(found)

    def values(self, label: str) -> list[Label]:
        """What the label says, each once, in order of appearance."""
        return list(dict.fromkeys(row[label] for row in self._rows))

    def by_seed(self, figure: str) -> dict[int, float]:
        """One figure of one setting. Raises ValueError where a seed has several rows: then these
        are not of one setting."""
        found = {int(row["seed"]): float(row[figure]) for row in self._rows}
        if len(found) != len(self._rows):
            raise ValueError(f"{figure}: several rows of one seed")
        return found

    def mean(self, figure: str) -> Interval:
        """Over the seeds of one setting."""
        return mean_interval(list(self.by_seed(figure).values()))
