"""How settles reach the brokers: with the next poll of that broker if one is about to leave, else alone.

Each item goes to the leader of its partition; one settle may so become several *pieces*, and it ends when the last
piece has its outcome. A piece that could not be sent, whose answer was lost, or whose partition has moved, is sent
again until the deadline. Its token, offsets and kind make that safe: a settle that took effect is answered as it was.
Only a cluster below feature level 2 may call it lost, and then the error says that the first may have done its work.
A partition that is not there any more, because its topic was made anew with fewer, has no leases: that is said at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from lanner import limits
from lanner.client.brokers import Brokers
from lanner.client.delivery import Settling
from lanner.client.routing import Routing
from lanner.client.session import Outcome, Session
from lanner.errors import LannerError, LeaseLost, NotLeader, PartitionNotFound, from_wire
from lanner.net.backoff import Backoff
from lanner.net.waiters import Waiters
from lanner.wire.messages import Command, Release, Settle, Settled, SettledItem, SettleItem

_PAUSE_S: Final = 0.1
_ITEM_BYTES: Final = 48  # of a settle in a request, at most, besides its reason
_REQUEST_BYTES_MAX: Final = limits.CONTROL_BYTES_MAX - 16 * limits.KIB  # of settles; a broker hangs up on one with more


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
        self._is_held = False  # a poll is about to leave
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

    def take(self, session: Session) -> list[Piece]:
        """What waits for the leader of its partitions to be told, for a poll of that broker to carry; as much as one
        request may hold."""
        taken: list[Piece] = []
        left: list[Piece] = []
        room, room_bytes = limits.SETTLE_RANGES_MAX, _REQUEST_BYTES_MAX
        alone = not self._brokers.are_several
        for piece in self._waiting:
            if piece.releases:
                left.append(piece)
                continue
            for leader, part in [(session, piece)] if alone else self._divide(piece):
                size = _size(part)
                if leader is session and len(part.items) <= room and size <= room_bytes:
                    taken.append(part)
                    room -= len(part.items)
                    room_bytes -= size
                else:
                    left.append(part)
        self._waiting = left
        return taken

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep what waits for the polls that leave in this block, or soon after it; `flush` sends what they left."""
        self._is_held = True
        try:
            yield
        finally:
            self.flush()

    def flush(self) -> None:
        """Send what waits, and keep nothing any more."""
        self._is_held = False
        if self._waiting:
            self._flush()

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
        if self._is_held:
            return
        waiting, self._waiting = self._waiting, []
        loads: dict[tuple[Session, bool], list[Piece]] = {}
        for piece in waiting:
            for session, part in self._divide(piece):
                if session is None:
                    self._failed([part], None, self._why_unled(part))
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
        if len(leaders) == 1 or (len(set(leaders.values())) == 1 and None not in leaders.values()):
            return [(leaders.popitem()[1], piece)]
        divided: dict[tuple[Session | None, int], list[SettleItem]] = {}
        for item in piece.items:
            leader = leaders[item.partition]
            # Of those that nobody leads, one may come back and another be gone for good.
            alone = item.partition if leader is None else -1
            divided.setdefault((leader, alone), []).append(item)
        piece.settling.pieces += len(divided) - 1
        return [(session, piece._replace(items=items)) for (session, _), items in divided.items()]

    def _why_unled(self, piece: Piece) -> LannerError:
        """Why nobody can be asked about the partitions of a piece."""
        began = piece.settling.deadline - self._brokers.timeout_ms / 1000
        if all(self._routing.is_gone(self._topic, item.partition, began) for item in piece.items):
            return PartitionNotFound()
        return NotLeader(f"nobody leads {self._topic}/{piece.items[0].partition} at present", sent=False)

    # ------------------------------------------------------------------ answers

    def answered(self, pieces: Sequence[Piece], session: Session, outcome: Outcome[Settled]) -> None:
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
        if result.code == PartitionNotFound.code:
            return self._gone(item)
        if result.code != LeaseLost.code:
            return from_wire(
                result.code, f"{where} could not be settled: {from_wire(result.code, '').message.rstrip('.')}"
            )
        maybe = "; or it took effect already, and only the answer was lost" if uncertain else ""
        return LeaseLost(
            f"the lease of {where} has ended, or it was leased again: the settle had no effect{maybe}",
            partition=item.partition,
            offset=item.first_offset,
        )

    def _gone(self, item: SettleItem) -> LannerError:
        return LeaseLost(
            f"{self._topic} was made anew, and has no partition {item.partition} now: the lease of "
            f"{self._topic}/{item.partition}/{item.first_offset} went with the old topic",
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
                if not isinstance(error, PartitionNotFound):
                    piece.settling.error = piece.settling.error or error
                elif not piece.releases:
                    piece.settling.error = piece.settling.error or self._gone(piece.items[0])
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


def _size(piece: Piece) -> int:
    """At most so many bytes it takes in a request."""
    return sum(_ITEM_BYTES + (len(item.reason.encode()) if item.reason else 0) for item in piece.items)


def _portions(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """As many pieces together as one request may hold; one that is larger is cut."""
    portion: list[Piece] = []
    count = size = 0
    for piece in [part for whole in pieces for part in _cut(whole)]:
        count, size = count + len(piece.items), size + _size(piece)
        if portion and (count > limits.SETTLE_RANGES_MAX or size > _REQUEST_BYTES_MAX):
            yield portion
            portion, count, size = [], len(piece.items), _size(piece)
        portion.append(piece)
    yield portion


def _cut(piece: Piece) -> list[Piece]:
    """A piece in parts that each fit into a request; nearly always that is one."""
    items = piece.items
    if len(items) <= limits.SETTLE_RANGES_MAX and _size(piece) <= _REQUEST_BYTES_MAX:
        return [piece]
    middle = len(items) // 2
    piece.settling.pieces += 1
    return [*_cut(piece._replace(items=items[:middle])), *_cut(piece._replace(items=items[middle:]))]
