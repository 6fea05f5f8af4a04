"""Damaged sets: replica sets of which a row of the table is damaged, while all other sets are whole.

Of such a set nothing can be trusted any more: neither what its machine holds nor how it voted. So it is closed: it has
no log here, records of the journal that speak of it are passed over, and it is never opened again. Only its removal
ends that. The row `q` says so, also when what was damaged can be read again by chance.

Which set a damaged row belongs to is said by its key, and the seal covers that too (`seals.true_key`). Rows of the
table itself and of the metadata (set 0) belong to everybody: with those, and with a row of a set of which nothing else
is here, the broker stops, as it does for a damaged journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lanner.errors import StorageDamaged
from lanner.ledger.inspection import Flaw
from lanner.ledger.ports import Table
from lanner.ledger.rows import SetState, decode_damaged, decode_set, owners, ranges_of_set, set_key
from lanner.ledger.seals import SEAL_BYTES, SealedTable, matches


@dataclass(frozen=True, slots=True)
class DamagedSet:
    """A set that is closed here; 0 stands for what is not known any more."""

    set_id: int
    error: StorageDamaged
    replica_id: int = 0
    generation: int = 0


@dataclass(slots=True)
class Judged:
    """What the flaws of a table come to."""

    sets: dict[int, DamagedSet] = field(default_factory=dict)
    gone: set[tuple[int, int]] = field(default_factory=set)  # (set, generation): nobody needs these rows any more
    strays: list[bytes] = field(default_factory=list)  # rows that lie under keys which are not theirs


def judge(table: SealedTable, flaws: Sequence[Flaw]) -> Judged:
    """Which sets are damaged by these flaws. StorageDamaged: one of them is everybody's."""
    judged = Judged()
    for flaw in flaws:
        if flaw.stored and flaw.stored != flaw.key:
            judged.strays.append(flaw.stored)
        if not flaw.set_id:
            raise flaw.error
        if flaw.set_id not in judged.sets:
            _judge(table, flaw, flaw.set_id, judged)
    for key, row in table.unchecked.scan(b"q", b"r"):
        if matches(key, row):
            set_id, generation, replica_id = decode_damaged(key, row[:-SEAL_BYTES])
            found = judged.sets.get(set_id)
            if found is None or not found.replica_id:
                error = _damaged_before(set_id) if found is None else found.error
                judged.sets[set_id] = DamagedSet(set_id, error, replica_id, generation)
    table.hide(flaw.stored for flaw in flaws)
    return judged


def _judge(table: SealedTable, flaw: Flaw, set_id: int, judged: Judged) -> None:
    raw = table.unchecked
    going, built = set(owners(raw, b"x", set_id)), set(owners(raw, b"n", set_id))
    state = _read_set(raw, set_id)
    if flaw.key[:1] == b"x" and flaw.generation is not None:
        judged.gone.add((set_id, flaw.generation))
    elif state is None and flaw.generation is not None and flaw.generation in going:
        return  # the set was removed, and this row is on its way out
    elif state is None:
        held = {generation for kind in (b"e", b"b", b"s") for generation in owners(raw, kind, set_id)}
        if flaw.stored == flaw.key and held <= {flaw.generation} and not _whole_rows(raw, set_id, held):
            raise flaw.error  # no other row knows such a set: the key may be what has changed
        held -= going | built
        judged.sets[set_id] = DamagedSet(set_id, flaw.error, generation=held.pop() if len(held) == 1 else 0)
    elif flaw.generation is None or flaw.generation == state.generation or flaw.generation in built:
        judged.sets[set_id] = DamagedSet(set_id, flaw.error, state.replica_id, state.generation)
    else:
        judged.gone.add((set_id, flaw.generation))


def _read_set(raw: Table, set_id: int) -> SetState | None:
    """The row of a set, if it is whole."""
    key = set_key(set_id)
    row = raw.get(key)
    return decode_set(key, row[:-SEAL_BYTES]) if row is not None and matches(key, row) else None


def _whole_rows(raw: Table, set_id: int, generations: set[int]) -> bool:
    """Whether some row of the set is what was stored."""
    ranges = (one for generation in generations for one in ranges_of_set(set_id, generation))
    return any(matches(key, row) for start, stop in ranges for key, row in raw.scan(start, stop))


def generations_of(raw: Table, set_id: int) -> Iterator[int]:
    """Every generation of which the table has rows."""
    yield from sorted({one for kind in (b"e", b"b", b"s", b"n") for one in owners(raw, kind, set_id)})


def _damaged_before(set_id: int) -> StorageDamaged:
    return StorageDamaged(f"a row of replica set {set_id} was found damaged before", set_id=set_id)


__all__ = ["DamagedSet", "Judged", "generations_of", "judge"]
