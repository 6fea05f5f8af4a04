"""Decay: a bit of a saved entry flips on a simulated disk, and somebody finds it, as the scrubber does."""

from __future__ import annotations

from random import Random

from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.errors import StorageDamaged
from lanner.ledger import FileMissing, read_entry
from lanner.ledger.records import position_at
from lanner.testing.disk import SimDisk

_CHUNKS_MAX = 1_000


def decay(engine: Engine, disk: SimDisk, rng: Random) -> int | None:
    """Flip a bit of a saved entry of some partition of which no other copy is known to be damaged; its set, or None."""
    ledger, cluster = engine.ledger, engine.cluster
    moving = {move.set_id for move in cluster.moves.values()}
    sets = sorted(engine.replicas)
    rng.shuffle(sets)
    for set_id in sets:
        record = cluster.sets.get(set_id)
        if set_id == CLUSTER_SET or record is None or set_id in moving or record.damaged or len(record.voters) < 3:
            continue
        held, _ = ledger.held(set_id, 1, _CHUNKS_MAX)
        places = [stored.location for stored in held if stored.index <= ledger.state(set_id).saved_index]
        saved = [
            place
            for place in places
            if place.length and position_at(place.file, place.offset + place.length) < ledger.saved_position
        ]
        if saved:
            place = rng.choice(saved)
            disk.flip_bit(place.file, place.offset + rng.randrange(place.length), rng.randrange(8))
            return set_id
    return None


def scrub(engine: Engine, disk: SimDisk, set_id: int) -> int:
    """Read every entry of a set, and note what is damaged; how many are."""
    if set_id not in engine.ledger.sets():
        return 0
    found = 0
    for stored in engine.ledger.held(set_id, 1, _CHUNKS_MAX)[0]:
        try:
            read_entry(disk.files, stored.location)
        except StorageDamaged as error:
            engine.damages.note(set_id, stored.index, error)
            found += 1
        except FileMissing:
            continue
    return found


__all__ = ["decay", "scrub"]
