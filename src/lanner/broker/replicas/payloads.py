"""Payloads that were applied a moment ago, for readers at the tail of a log."""

from __future__ import annotations

from collections import OrderedDict


class PayloadCache:
    """The newest payloads, so that a consumer at the tail costs no read. Bounded by bytes; the oldest go first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._payloads: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def put(self, set_id: int, index: int, payload: bytes) -> None:
        self._payloads[set_id, index] = payload
        self._bytes += len(payload)
        while self._bytes > self._bytes_max:
            _, oldest = self._payloads.popitem(last=False)
            self._bytes -= len(oldest)

    def get(self, set_id: int, index: int) -> bytes | None:
        return self._payloads.get((set_id, index))

    def drop(self, set_id: int, index: int) -> None:
        payload = self._payloads.pop((set_id, index), None)
        if payload is not None:
            self._bytes -= len(payload)
