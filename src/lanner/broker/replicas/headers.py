"""Headers of batches that were read when they came, kept until the batch applies: on its own broker it is read once.

Only the very same bytes object counts as the same batch, so what applies is what would have been read anyway.
"""

from __future__ import annotations

from lanner import batch


class KnownHeaders:
    """Headers by the payload that was proposed. The caller that adds one removes it with the proposal's outcome."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, batch.Header]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def know(self, payload: bytes, header: batch.Header) -> None:
        self._known[id(payload)] = (payload, header)

    def forget(self, payload: bytes) -> None:
        self._known.pop(id(payload), None)

    def read(self, data: memoryview) -> batch.Header:
        """The header of a batch at the end of its payload."""
        known = self._known.get(id(data.obj))
        if known is not None and known[0] is data.obj:
            return known[1]
        return batch.read_header(data)
