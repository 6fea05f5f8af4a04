"""How settles reach the brokers: with the next poll when one is about to leave, else alone at the end of the turn.

Each item goes to the leader of its partition; one settle may so become several *pieces*, and it ends when the last
piece has its outcome. A piece that could not be sent, whose answer was lost, or whose partition has moved, is sent
again until the deadline. Its token, offsets and kind make that safe: a settle that took effect is answered as it was.
Only a cluster below feature level 2 may call it lost, and then the error says that the first may have done its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from lanner import limits
from lanner.client.brokers import Brokers
from lanner.client.delivery import Settling
from lanner.client.routing import Routing
from lanner.client.session import Outcome, Session
from lanner.errors import LannerError, LeaseLost, NotLeader, from_wire
from lanner.net.backoff import Backoff
from lanner.net.waiters import Waiters
from lanner.wire.messages import Command, Release, Settle, SettledItem, SettleItem

_PAUSE_S: Final = 0.1


class Piece(NamedTuple):
    """What of one settle goes to one broker."""

    settling: Settling
    items: list[SettleItem]
    releases: bool = False  # gives back what nobody saw: nobody minds when the lease is gone


class SettleQueue:
    """Settles of one consumer on their way."""

    def __init__(self, brokers: Brokers, routing: Routing, topic: str, group: str) -> None:
        self._brokers = brokers
        self._routing = routing
        self._topic = topic
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Piece] = []
        self._flush_due = False
        self._underway = 0
        self._ended = Waiters()  # for every settle to have its outcome

    def add(self, items: list[SettleItem]) -> Settling:
        return self._add(items, releases=False)

    def release(self, items: list[SettleItem]) -> Settling:
        """Give back, without counting an attempt, what the application never saw."""
        return self._add(items, releases=True)

    def _add(self, items: list[SettleItem], releases: bool) -> Settling:
        settling = Settling(items, self._loop.time() + self._brokers.timeout_ms / 1000)
        self._underway += 1
        self._waiting.append(Piece(settling, items, releases))
        self._flush_soon()
        return settling

    def take(self) -> list[Piece]:
        """What waits, for a poll to carry to the broker that leads everything; as much as one request may hold."""
        taken: list[Piece] = []
        size = 0
        while self._waiting and not self._waiting[0].releases:
            size += len(self._waiting[0].items)
            if size > limits.SETTLE_RANGES_MAX:
                break
            taken.append(self._waiting.pop(0))
        return taken

    async def idle(self) -> None:
        """Return when every settle has its outcome."""
        while self._underway:
            await self._ended.wait()

    # ------------------------------------------------------------------ sending

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        waiting, self._waiting = self._waiting, []
        loads: dict[tuple[Session, bool], list[Piece]] = {}
        for piece in waiting:
            for session, part in self._divide(piece):
                if session is None:
                    self._failed([part], None, NotLeader("nobody leads the partition at present", sent=False))
                else:
                    loads.setdefault((session, part.releases), []).append(part)
        for (session, releases), pieces in loads.items():
            for portion in _portions(pieces):
                self._send(session, releases, portion)

    def _send(self, session: Session, releases: bool, pieces: list[Piece]) -> None:
        items = [item for piece in pieces for item in piece.items]
        left_s = max(piece.settling.deadline for piece in pieces) - self._loop.time()
        session.call(
            Command.RELEASE if releases else Command.SETTLE,
            (Release if releases else Settle)(self._group, self._topic, items),
            (),
            lambda outcome: self.answered(pieces, session, outcome),
            max(left_s, _PAUSE_S) * 1000,
        )

    def _divide(self, piece: Piece) -> list[tuple[Session | None, Piece]]:
        """A piece by who leads its partitions now; mostly that is one broker."""
        partitions = {item.partition for item in piece.items}
        leaders = {partition: self._routing.leader(self._topic, partition) for partition in partitions}
        if len(set(leaders.values())) == 1:
            return [(leaders.popitem()[1], piece)]
        divided: dict[Session | None, list[SettleItem]] = {}
        for item in piece.items:
            divided.setdefault(leaders[item.partition], []).append(item)
        piece.settling.pieces += len(divided) - 1
        return [(session, piece._replace(items=items)) for session, items in divided.items()]

    # ------------------------------------------------------------------ answers

    def answered(self, pieces: Sequence[Piece], session: Session, outcome: Outcome) -> None:
        """A broker's answer to these, in order; or why there is none."""
        if isinstance(outcome, LannerError):
            self._failed(pieces, session, outcome)
            return
        results: list[SettledItem] = outcome.control.items
        position = 0
        for piece in pieces:
            end = position + len(piece.items)
            self._judge(piece, results[position:end])
            position = end

    def _judge(self, piece: Piece, results: Sequence[SettledItem]) -> None:
        settling = piece.settling
        moved: list[SettleItem] = []
        error: LannerError | None = None
        for item, result in zip(piece.items, results, strict=True):
            settling.settled_count += result.count
            if result.code == NotLeader.code and self._may_repeat(settling):
                moved.append(item)
            elif result.code and error is None and not piece.releases:
                error = self._error_of(item, result, settling.uncertain)
        if error is not None and settling.error is None:
            settling.error = error
        if moved:
            settling.uncertain = True
            self._routing.refresh(self._topic)
            self._send_later([piece._replace(items=moved)])
        else:
            self._end(piece)

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

    def _failed(self, pieces: Iterable[Piece], session: Session | None, error: LannerError) -> None:
        again = []
        for piece in pieces:
            for partition in {item.partition for item in piece.items}:
                self._routing.failed(self._topic, partition, session, error)
            if error.retryable and self._may_repeat(piece.settling):
                piece.settling.uncertain = piece.settling.uncertain or error.details.get("sent", True)
                again.append(piece)
            else:
                piece.settling.error = piece.settling.error or error
                self._end(piece)
        self._send_later(again)

    def _may_repeat(self, settling: Settling) -> bool:
        return self._loop.time() + 2 * _PAUSE_S < settling.deadline and not self._brokers.is_closed

    def _send_later(self, pieces: list[Piece]) -> None:
        if pieces:
            self._loop.call_later(Backoff(_PAUSE_S).pause_s(), self._send_again, pieces)

    def _send_again(self, pieces: list[Piece]) -> None:
        self._waiting[:0] = pieces
        self._flush_soon()

    def _end(self, piece: Piece) -> None:
        settling = piece.settling
        settling.pieces -= 1
        if settling.pieces:
            return
        settling.finish(settling.error)
        self._underway -= 1
        if not self._underway:
            self._ended.wake_all()


def _portions(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """As many pieces together as one request may hold; one that is larger goes alone, and is refused."""
    portion: list[Piece] = []
    size = 0
    for piece in pieces:
        if portion and size + len(piece.items) > limits.SETTLE_RANGES_MAX:
            yield portion
            portion, size = [], 0
        portion.append(piece)
        size += len(piece.items)
    yield portion
