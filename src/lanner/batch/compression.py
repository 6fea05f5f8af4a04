"""Bodies made smaller and back: lz4 and zstd, each told beforehand how much may come out.

Nothing here trusts a length inside compressed bytes. The raw length comes from the header, is bounded there, and is
exactly what must unfold.
"""

from __future__ import annotations

from typing import Final

import lz4.block
import zstandard

from lanner import limits
from lanner.batch.header import Codec, malformed

_ZSTD_LEVEL: Final = 3
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * limits.MIB


def compress(codec: Codec, raw: bytes) -> bytes:
    """The body under a codec other than none. May be larger than it was."""
    if codec is Codec.LZ4:
        return bytes(lz4.block.compress(raw, store_size=False))
    # A compressor belongs to one thread at a time, and extracts are made in several: each call has its own.
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True).compress(raw)


def decompress(codec: Codec, stored: memoryview, raw_length: int) -> bytes:
    """The raw body, exactly as long as the header says; anything else is malformed."""
    try:
        raw = _unfold(codec, stored, raw_length)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError):
        malformed("body", "it does not decompress")
    if len(raw) != raw_length:
        malformed("raw_length", f"{raw_length}, but the body unfolds into {len(raw)} bytes")
    return raw


def _unfold(codec: Codec, stored: memoryview, raw_length: int) -> bytes:
    if codec is Codec.LZ4:
        return bytes(lz4.block.decompress(stored, uncompressed_size=raw_length))
    # A zstd frame carries a size of its own, which the decompressor would allocate: compare it first.
    frame = zstandard.get_frame_parameters(stored)
    if frame.content_size != raw_length or frame.window_size > _ZSTD_WINDOW_BYTES_MAX:
        malformed("body", f"the compressed frame does not say that it holds {raw_length} bytes")
    return zstandard.ZstdDecompressor().decompress(stored, raw_length, allow_extra_data=False)
