"""What a replica's Raft node is told when it starts: how it voted, who belongs to the set, and where its log stands."""

from __future__ import annotations

from lanner.broker.replicas.logs import JournalLog
from lanner.broker.replicas.replica import MEMBERSHIP_KEY
from lanner.ledger import Rows, SetState
from lanner.raft import HardState, Membership, Restored


def restore(known: SetState, founders: frozenset[int], rows: Rows, log: JournalLog) -> Restored:
    """As the ledger knows the set; who belongs to it is in its rows, and in what its log holds behind those."""
    saved = rows.get(MEMBERSHIP_KEY)
    members = Membership(founders, frozenset()) if saved is None else Membership.decode(saved)
    return Restored(
        hard_state=HardState(known.term, known.vote),
        voters=members.voters,
        learners=members.learners,
        compacted_index=known.compacted_index,
        compacted_term=known.compacted_term,
        last_index=known.last_index,
        last_term=known.last_term,
        applied_index=known.saved_index,
        memberships=log.memberships(known.saved_index + 1, known.last_index),
    )


def is_sole(restored: Restored, replica_id: int) -> bool:
    """Whether the set has this replica only, and nothing says otherwise."""
    return not restored.memberships and (restored.voters, restored.learners) == (frozenset({replica_id}), frozenset())


__all__ = ["is_sole", "restore"]
