"""How settles reach the broker: with the next poll when one is about to leave, else alone at the end of the turn.

A settle that could not be sent, or whose answer was lost, is sent again until its deadline. The lease token makes that
safe: at worst the second sending finds the lease gone, and then the error says that the first may have done its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from lanner import limits
from lanner.client.delivery import Settling
from lanner.client.session import Outcome, Session
from lanner.errors import LannerError, LeaseLost, from_wire
from lanner.wire.messages import Command, Settle, SettledItem, SettleItem

_PAUSE_S: Final = 0.1


class SettleQueue:
    """Settles of one consumer on their way."""

    def __init__(self, session: Session, topic: str, group: str) -> None:
        self._session = session
        self._topic = topic
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Settling] = []
        self._flush_due = False
        self._underway = 0
        self._idle_waiters: list[asyncio.Future[None]] = []

    def add(self, items: list[SettleItem]) -> Settling:
        settling = Settling(items, self._loop, self._loop.time() + self._session.timeout_ms / 1000)
        self._underway += 1
        self._waiting.append(settling)
        self._flush_soon()
        return settling

    def take(self) -> list[Settling]:
        """What waits, for a poll to carry; as much as one request may hold."""
        taken: list[Settling] = []
        size = 0
        while self._waiting and size + len(self._waiting[0].items) <= limits.SETTLE_RANGES_MAX:
            size += len(self._waiting[0].items)
            taken.append(self._waiting.pop(0))
        return taken

    async def idle(self) -> None:
        """Return when every settle has its outcome."""
        while self._underway:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        while self._waiting:
            taken = self.take()
            if not taken:  # one settle with more ranges than a request may hold
                taken = [self._waiting.pop(0)]
            items = [item for settling in taken for item in settling.items]
            self._session.call(
                Command.SETTLE,
                Settle(self._group, self._topic, items),
                (),
                lambda outcome, taken=taken: self.answered(taken, outcome),  # type: ignore[misc]
            )

    def answered(self, settlings: Sequence[Settling], outcome: Outcome) -> None:
        """The broker's answer to these, in order; or why there is none."""
        if isinstance(outcome, LannerError):
            self._failed(settlings, outcome)
            return
        results: list[SettledItem] = outcome.control.items
        position = 0
        for settling in settlings:
            end = position + len(settling.items)
            self._finish(settling, results[position:end])
            position = end

    def _finish(self, settling: Settling, results: Sequence[SettledItem]) -> None:
        error: LannerError | None = None
        for item, result in zip(settling.items, results, strict=True):
            settling.settled_count += result.count
            if result.code and error is None:
                error = self._error_of(item, result, settling.uncertain)
        self._end(settling, error)

    def _error_of(self, item: SettleItem, result: SettledItem, uncertain: bool) -> LannerError:
        where = f"{self._topic}/{item.partition}/{item.first_offset}"
        if item.count > 1:
            where += f" and the {item.count - 1} after it"
        if result.code != LeaseLost.code:
            return from_wire(result.code, f"{where} could not be settled")
        maybe = "; or it took effect already, and only the answer was lost" if uncertain else ""
        return LeaseLost(
            f"the lease of {where} has ended, or it was leased again: the settle had no effect{maybe}",
            partition=item.partition,
            offset=item.first_offset,
        )

    def _failed(self, settlings: Sequence[Settling], error: LannerError) -> None:
        now = self._loop.time()
        again = []
        for settling in settlings:
            if error.retryable and now + _PAUSE_S < settling.deadline and not self._session.is_closed:
                settling.uncertain = settling.uncertain or error.details.get("sent", True)
                again.append(settling)
            else:
                self._end(settling, error)
        if again:
            self._loop.call_later(_PAUSE_S, self._send_again, again)

    def _send_again(self, settlings: list[Settling]) -> None:
        self._waiting[:0] = settlings
        self._flush_soon()

    def _end(self, settling: Settling, error: LannerError | None) -> None:
        settling.finish(error)
        self._underway -= 1
        if not self._underway:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()
