"""The batch format: how messages lie in bytes from a producer to a consumer.

A batch is made once, by the producer. Brokers store and forward its bytes as they are: what a producer checksummed is
what a consumer verifies. So nothing that a broker decides (offsets, append time) is in here; it travels beside it.

Layout, little-endian, every buffer on an 8-byte boundary counted from the start of the batch, padding is zero:

    header        64 bytes, see _HEADER; the crc32c covers everything behind it
    dedup_id      as many bytes as the header says
    positions     u32[count]     extracts only: each message's place in its original batch, rising
    checksums     u32[count]     crc32c of value, key and headers of each message, as its producer computed it
    key_hashes    u64[count]     xxh64 of each key, 0 for a null key; only with keys
    body          the columns below, raw or compressed as one piece (then it is as long as the rest of the batch)
        values        i32[count+1] offsets, bytes
        keys          [validity bitmap, lowest bit first, a zero is a null key], offsets, bytes
        headers       offsets, bytes: per message a msgpack map of text to binary, or nothing
        timestamps    i64[count], the producers' own, in ms

A column that would be empty is absent, and a flag says so. Offsets, validity and bytes are laid out as Arrow has them,
so that a reader can wrap them without touching a message.

An *extract* is some of the messages of a batch under a new batch checksum. It is made by a broker, so a consumer
trusts the per-message checksums in it, which are the producer's: `Batch.verify_messages`.

Rules. A length or count is compared with its bound before anything is allocated or sliced from it; a batch may not
be larger than `limits.BATCH_BYTES_MAX` *uncompressed* either, so a small body cannot unfold into a big one. Every
refusal is a `MalformedBatch` that names the field. The views handed out share memory with the bytes that were
decoded: code that decodes a buffer must not write to it afterwards.
"""

from lanner.batch.decoding import Batch, decode, extract, never_decodes
from lanner.batch.encoding import Laid, encode
from lanner.batch.header import (
    FLAG_EXTRACT,
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_NULL_KEYS,
    FLAG_TIMESTAMPS,
    HEADER_BYTES,
    VERSION,
    Buffer,
    Codec,
    Header,
    read_header,
    verify,
)
from lanner.batch.placement import partition_for_hash, partition_for_key

__all__ = [
    "FLAG_EXTRACT",
    "FLAG_HEADERS",
    "FLAG_KEYS",
    "FLAG_NULL_KEYS",
    "FLAG_TIMESTAMPS",
    "HEADER_BYTES",
    "VERSION",
    "Batch",
    "Buffer",
    "Codec",
    "Header",
    "Laid",
    "decode",
    "encode",
    "extract",
    "never_decodes",
    "partition_for_hash",
    "partition_for_key",
    "read_header",
    "verify",
]
