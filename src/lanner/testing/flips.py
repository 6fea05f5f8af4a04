"""Flipped bits in journal records: what a disk does to them while nobody looks."""

from __future__ import annotations

from random import Random

from lanner.ledger.records import RecordReader
from lanner.ledger.replay import read_header
from lanner.testing.disk import SimDisk

Record = tuple[int, int, int]  # file, offset, size


def flip_record(disk: SimDisk, record: Record, rng: Random) -> None:
    """One bit of it, any."""
    file_id, offset, size = record
    disk.flip_bit(file_id, offset + rng.randrange(size), rng.randrange(8))


def holds_record(disk: SimDisk, record: Record) -> bool:
    """Whether the disk holds the record whole."""
    file_id, offset, size = record
    header = read_header(disk.files, file_id)
    if header is None:
        return False
    reader = RecordReader(disk.files, file_id, offset + size, header.salt)
    found = reader.head_at(offset)
    return found is not None and reader.payloads_match(found)
