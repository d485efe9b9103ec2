"""Sorting one request's events: which to show, what was lost, and when it is over.

Pure bookkeeping over attempts and sequence numbers; it knows no bus and no clock.
"""

from pipeline.messages import OutputEvent


class EventFilter:
    """Feeds on events as they come, in any order, any number of times."""

    def __init__(self) -> None:
        self.attempt = 0
        """The highest attempt seen; 0 before the first event."""
        self.gap = False
        """Events of this attempt are missing: its text is not whole."""
        self._next = 0

    def take(self, event: OutputEvent) -> bool:
        """Whether the event is to be shown. Notes, lower attempts and repeats are not.

        An event that comes after a later one of its attempt is a repeat or too late to be shown;
        what it would have filled stays a gap.
        """
        if event.attempt < max(self.attempt, 1):
            return False
        if event.attempt > self.attempt:
            self.attempt = event.attempt
            self.gap = False
            self._next = 0
        if event.sequence < self._next:
            return False
        if event.sequence > self._next:
            self.gap = True
        self._next = event.sequence + 1
        return True

    def lost(self) -> None:
        """Events were dropped on our own side."""
        self.gap = True
