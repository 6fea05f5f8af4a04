"""What an operator asks about transactions, and does about those that are stuck."""

from __future__ import annotations

from lanner.client.brokers import Brokers
from lanner.errors import NotFoundError, TransactionBusy
from lanner.model import check_name
from lanner.wire.staging import (
    CommitPhase,
    CommitState,
    End,
    Forget,
    ListTransactions,
    TransactionList,
    TransactionState,
)


class TransactionAdmin:
    """The part of `queue.admin` that is about transactions."""

    def __init__(self, session: Brokers) -> None:
        self._session = session

    async def transactions(self, *, open_only: bool = False, after: str = "", limit: int = 100) -> TransactionList:
        """A page of them by name: who owns each, what it has committed, and the try that is under way."""
        asked = ListTransactions("", open_only, after, limit)
        return await self._session.ask(asked)

    async def transaction(self, transaction: str) -> TransactionState:
        """One of them, with how its latest commits ended and who is awaited in the one under way."""
        asked = ListTransactions(check_name(transaction, "transaction"))
        found = await self._session.ask(asked)
        if not found.transactions:
            raise NotFoundError(
                f"there is no transaction {transaction!r}; it may be forgotten", transaction=transaction
            )
        return found.transactions[0]

    async def abort_transaction(self, transaction: str) -> CommitState:
        """Abort the try that is under way, if it is not decided; what became of it."""
        row = await self.transaction(transaction)
        if row.open is None:
            raise NotFoundError(f"transaction {transaction!r} has no commit under way", transaction=transaction)
        if row.open.phase == CommitPhase.COMMITTED:
            return CommitState(row.open.phase, row.open.token)
        asked = End(transaction, row.owner, row.open.commit_id)
        return await self._session.ask(asked)

    async def clear_forgotten_transactions(self) -> int:
        """Let every name that was forgotten be used as a new one, and its work be published again; how many there were.

        Only for when there are too many of them, and no late repeat is to be feared.
        """
        return (await self._session.ask(Forget([], hashes=True))).count

    async def forget_transaction(self, transaction: str) -> None:
        """Forget it; a hash stays, so that a late repeat is refused. Not while a commit is under way."""
        row = await self.transaction(transaction)
        if row.open is not None:
            raise TransactionBusy(f"transaction {transaction!r} has a commit under way: abort it, or wait for its end")
        found = await self._session.ask(Forget([transaction]))
        if not found.count:
            raise TransactionBusy(f"transaction {transaction!r} was used a moment ago; it is not forgotten")
