"""Transactions: messages to several partitions, of one or many topics, that become visible all or none.

A transaction has a name, an owner (a lineage of work, such as a program; not a process) and a sequence that names one
piece of that work. The same sequence again is the same work: it is committed once, however often it is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from lanner.client.arguments import Text
from lanner.client.brokers import Brokers
from lanner.client.commits import TIMEOUT_S, WAIT, Claimed, Commits, Committed, check_manner, check_names, plan_commit
from lanner.client.options import StageColumnOptions, StagedMessageOptions, StageOptions
from lanner.client.routing import Routing
from lanner.client.stages import Staged, StageWriter
from lanner.errors import LannerError, ServiceUnavailable, ValidationError
from lanner.wire.staging import CommitPhase


class Transaction:
    """`async with queue.transaction(...) as transaction`: leaving commits, an exception discards."""

    def __init__(
        self,
        transactions: Transactions,
        name: str,
        owner: str,
        sequence: int,
        timeout: float,
        wait: str,
        options: StageOptions,
    ) -> None:
        check_names(name, owner, sequence)
        check_manner(timeout, wait)
        self.name = name
        self.owner = owner
        self.sequence = sequence
        self.repeated = False  # this sequence was committed before; publishes do nothing
        self.committed: Committed | None = None
        self._transactions = transactions
        self._timeout = timeout
        self._wait = wait
        self._options = options
        self._writer: StageWriter | None = None

    async def publish(self, topic: str, value: Text, **options: Unpack[StagedMessageOptions]) -> None:
        """Add one message; it shows once the transaction is committed. Options: as of `queue.publish`."""
        await self._staging().publish(topic, value, **options)

    async def publish_many(self, topic: str, values: Sequence[Text], **options: Unpack[StageColumnOptions]) -> None:
        """Add many messages, given as columns. Options: as of `queue.publish_many`."""
        await self._staging().publish_many(topic, values, **options)

    async def commit(self) -> Committed:
        """Make everything visible; leaving the block does it."""
        staged = await self._staging().finish()
        self._writer = None
        try:
            self.committed = await self._transactions.commit(
                self.name, self.owner, self.sequence, [staged], timeout=self._timeout, wait=self._wait
            )
        except LannerError as error:
            if error.details.get("outcome") == "not begun":
                await self._transactions.commits.discard([staged])
            raise
        self.repeated = self.committed.repeated
        return self.committed

    async def discard(self) -> None:
        """Give everything up: nothing of it shows."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.abandon()
            await self._transactions.commits.discard([writer.staged()])

    def _staging(self) -> StageWriter:
        if self._writer is None:
            raise ServiceUnavailable(
                "this transaction has not begun, or has ended: use `async with queue.transaction(...)`"
            )
        return self._writer

    async def __aenter__(self) -> Transaction:
        if self._writer is not None:
            raise ValidationError("this transaction has begun already: leave its block first, or make another one")
        self._writer = await self._transactions.stage(self.name, self.owner, self.sequence, **self._options)
        self.repeated = self._writer.repeated
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._writer is None:
            return  # committed or discarded already
        if kind is not None:
            await self.discard()
            return
        try:
            await self.commit()
        except BaseException:
            await self.discard()  # only what could not even be staged is still here
            raise


class Transactions:
    """What a queue does about transactions."""

    def __init__(self, brokers: Brokers, routing: Routing) -> None:
        self._brokers = brokers
        self._routing = routing
        self.commits = Commits(brokers, routing)

    def transaction(
        self, name: str, owner: str, sequence: int, timeout: float, wait: str, options: StageOptions
    ) -> Transaction:
        self._brokers.check_open()
        return Transaction(self, name, owner, sequence, timeout, wait, options)

    async def stage(
        self, name: str, owner: str, sequence: int, *, task: int = 0, **options: Unpack[StageOptions]
    ) -> StageWriter:
        self._brokers.check_open()
        repeated = await self.commits.committed_before(name, owner, sequence)
        return StageWriter(self._brokers, self._routing, name, owner, sequence, task=task, repeated=repeated, **options)

    async def commit(
        self,
        name: str,
        owner: str,
        sequence: int,
        staged: Sequence[Staged],
        *,
        timeout: float = TIMEOUT_S,
        wait: str = WAIT,
        once: bool = False,
    ) -> Committed:
        plan = plan_commit(name, owner, sequence, staged, once=once)
        return await self.commits.commit(plan, timeout_s=timeout, wait=wait)

    async def discard(
        self, name: str, owner: str, sequence: int, staged: Sequence[Staged], *, begun: bool = True
    ) -> Committed | None:
        """Abort the commit of exactly these stages and drop them; the commit, if that turns out to be decided."""
        if begun:
            state = await self.commits.abort(plan_commit(name, owner, sequence, staged))
            if state.phase in (CommitPhase.COMMITTED, CommitPhase.VISIBLE):
                return Committed(name, sequence, False, state.phase == CommitPhase.VISIBLE)
        await self.commits.discard(staged)
        return None

    async def claim(self, name: str, owner: str, *, restart: bool = False) -> Claimed:
        return await self.commits.claim(name, owner, restart=restart)
