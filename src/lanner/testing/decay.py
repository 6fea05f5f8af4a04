"""Decay: a bit of a saved entry flips on a simulated disk, and the scrubber reads it.

Only what is saved decays here: what a start would replay is refused there as a whole (see `flips`).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.errors import StorageDamaged
from lanner.ledger import FileMissing, Ledger, Location, read_entry
from lanner.ledger.records import position_at
from lanner.testing.sim_broker import SimBroker

_CHUNKS_MAX: Final = 1_000
_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Decayed:
    """One entry of one replica's log that does not match its checksum any more."""

    broker: SimBroker
    set_id: int
    replica_id: int
    index: int
    location: Location

    @property
    def is_there(self) -> bool:
        """Whether the replica still has the entry, at that place."""
        ledger = self.broker.engine.ledger
        try:
            known = ledger.state(self.set_id).replica_id == self.replica_id
            return known and ledger.locate(self.set_id, self.index) == self.location
        except KeyError:
            return False


def decay(broker: SimBroker, set_id: int, rng: Random) -> Decayed | None:
    """Flip a bit of a saved entry of a set; None: there is none."""
    ledger = broker.engine.ledger
    state = ledger.state(set_id)
    held, _ = ledger.held(set_id, 1, _CHUNKS_MAX)
    saved = [stored for stored in held if _is_saved(ledger, set_id, stored.index)]
    if set_id == CLUSTER_SET or not saved:
        return None
    stored = rng.choice(saved)
    place = stored.location
    broker.disk.flip_bit(place.file, place.offset + rng.randrange(place.length), rng.randrange(8))
    broker.decayed.add(place[:2])
    return Decayed(broker, set_id, state.replica_id, stored.index, place)


def decay_batch(broker: SimBroker, set_id: int, rng: Random) -> bool:
    """The same for a batch that clients may still want, of which there is no other copy; what it held is remembered
    for the judges. Whether there was one."""
    ledger, partition = broker.engine.ledger, broker.engine.replica(set_id).partition
    refs = partition.batches_from(partition.first_offset, _BYTES_MAX)
    found = [ref for ref in refs if not broker.has_decayed(set_id, ref.index) and _is_saved(ledger, set_id, ref.index)]
    if not found:
        return False
    ref = rng.choice(found)
    place = ledger.locate(set_id, ref.index)
    broker.remembered[set_id, ref.index] = broker.read(set_id, ref)
    broker.disk.flip_bit(place.file, place.offset + rng.randrange(place.length), rng.randrange(8))
    broker.decayed.add(place[:2])
    return True


def _is_saved(ledger: Ledger, set_id: int, index: int) -> bool:
    """Whether the table has the entry and what became of it, so that no start replays it."""
    try:
        place = ledger.locate(set_id, index)
    except KeyError:  # the commit under way discards it
        return False
    end = position_at(place.file, place.offset + place.length)
    return index <= ledger.state(set_id).saved_index and place.length > 0 and end < ledger.saved_position


def scrub(broker: SimBroker, set_id: int) -> int:
    """Read every entry of a set, and note what is damaged, as the scrubber does; how many are."""
    engine = broker.engine
    if set_id not in engine.ledger.sets():
        return 0
    found = 0
    for stored in engine.ledger.held(set_id, 1, _CHUNKS_MAX)[0]:
        try:
            read_entry(broker.disk.files, stored.location)
        except StorageDamaged as error:
            engine.damages.note(set_id, stored.index, error)
            found += 1
        except FileMissing:
            continue
    return found


__all__ = ["Decayed", "decay", "decay_batch", "scrub"]
