"""Commits and transactions, on any broker.

What changes the metadata goes into its log from wherever it is asked, so this broker serves it itself. A look that does
not wait catches up with the metadata's leader first: a caller that has just been told of a claim or a commit by another
broker must find it here. Who is awaited in a try is known where the metadata is led.
"""

from __future__ import annotations

from lanner.broker.desks.calls import Identity
from lanner.broker.forwarding.spreading import Spreading
from lanner.cluster import METADATA_SET
from lanner.errors import BadGateway, DeadlineExceeded, ServiceUnavailable
from lanner.wire import staging
from lanner.wire.administration import CountReply


class ForwardedStaging(Spreading):
    """Transactions, seen and changed from any broker."""

    async def begin(self, identity: Identity, asked: staging.Begin) -> staging.CommitState:
        for one in asked.participants:
            await self.find_topic(one.topic)
        found: staging.CommitState = await self._service.begin(identity, asked)
        return found

    async def end(self, identity: Identity, asked: staging.End) -> staging.CommitState:
        found: staging.CommitState = await self._service.end(identity, asked)
        return found

    async def look(self, identity: Identity, asked: staging.Look) -> staging.Looked:
        if not asked.wait_ms:
            await self.catch_up()
        found: staging.Looked = await self._service.look(identity, asked)
        return found

    async def claim(self, identity: Identity, asked: staging.Claim) -> staging.Claimed:
        found: staging.Claimed = await self._service.claim(identity, asked)
        return found

    async def forget(self, identity: Identity, asked: staging.Forget) -> CountReply:
        await self.catch_up()
        found: CountReply = await self._service.forget(identity, asked)
        return found

    async def list_transactions(self, identity: Identity, asked: staging.ListTransactions) -> staging.TransactionList:
        leader = self._routes.leader_of(METADATA_SET)
        found: staging.TransactionList
        if asked.transaction and leader not in ("", self._node.node_id):
            try:
                found = await self.at(leader).list_transactions(identity, asked)
                return found
            except (BadGateway, DeadlineExceeded, ServiceUnavailable):
                pass  # then what is known here
        await self.catch_up()
        found = await self._service.list_transactions(identity, asked)
        return found
