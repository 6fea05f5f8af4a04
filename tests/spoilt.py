"""Batches that a broker takes and nobody can read."""

from __future__ import annotations

import struct

from crc32c import crc32c

from lanner import batch
from lanner.batch.header import front_length


def undecodable(count: int = 1) -> bytes:
    """A sound header and a checksum that matches, with columns that do not decompress."""
    data = bytearray(batch.encode([b"v" * 200] * count, codec=batch.Codec.LZ4))
    body = front_length(count, batch.read_header(data).flags, 0)
    data[body:] = b"\xff" * (len(data) - body)
    struct.pack_into("<I", data, 4, crc32c(bytes(data[8:])))
    batch.verify(bytes(data))
    assert batch.never_decodes(bytes(data))
    return bytes(data)
