"""Dead letters as a stream, of the blocking client: the same calls, handed to the loop's thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lanner.client import dead_reader as asynchronous_dead_reader
from lanner.client.dead_reader import DeadHole, DeadLetter, DeadLetters
from lanner.sync_admin import Caller


class DeadLetterReader:
    """Iterate letters, or `read_batch()` for columns."""

    def __init__(self, thread: Caller, reader: asynchronous_dead_reader.DeadLetterReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def holes(self) -> Sequence[DeadHole]:
        return self._reader.holes

    def read_batch(self, wait_ms: float | None = None) -> DeadLetters | None:
        """The next letters. None: the wait is over, or (`until_end`) everything is read."""
        return self._thread.call(self._reader.read_batch(wait_ms))

    def __iter__(self) -> Iterator[DeadLetter]:
        while (found := self.read_batch()) is not None:
            yield from found.letters()

    def positions(self) -> dict[int, int]:
        return self._reader.positions()

    def close(self) -> None:
        self._thread.call(self._reader.close())

    def __enter__(self) -> DeadLetterReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
