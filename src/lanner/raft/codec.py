"""Messages as bytes.

A message is a fixed head, a table with one row for each entry, and the payloads one after another, little-endian:

    u8 version · u8 kind · u8 flags (1 = rejected) · u8 zero · u32 entries
    u64 sender · receiver · term · log_index · log_term · commit_index · hint · context · first entry's index
    for each entry: u64 term · u32 length · u8 kind
    payloads

Encoding copies no payload: it returns buffers for one gathered write. Decoding copies each payload once, out of the
frame it came in. Nothing in a frame is trusted: every length is held against what is there before it is used, and
indexes, terms and kinds against what a node could have sent. Whose fault a bad frame is, is clear: the peer's.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import chain

from lanner import limits
from lanner.errors import RemoteProtocolError
from lanner.raft.entry import Entry, EntryKind, Message, MessageKind

VERSION = 1
_HEAD = struct.Struct("<BBBBI9Q")
_ROW = struct.Struct("<QIB")
_REJECTED = 1
_new = tuple.__new__  # what a NamedTuple's own constructor ends in, without the detour: a third of the time
_NUMBER_MAX = (1 << 63) - 1
_MESSAGE_KINDS = frozenset(int(kind) for kind in MessageKind)
_ENTRY_KINDS = frozenset(int(kind) for kind in EntryKind)


@lru_cache(maxsize=64)
def _rows(count: int) -> struct.Struct:
    return struct.Struct("<" + "QIB" * count)


def encode_message(message: Message) -> list[bytes]:
    """The message as buffers, to be written one after another; the payloads are the entries' own."""
    entries = message.entries
    count = len(entries)
    head = _HEAD.pack(
        VERSION,
        message.kind,
        _REJECTED if message.rejected else 0,
        0,
        count,
        message.sender,
        message.receiver,
        message.term,
        message.log_index,
        message.log_term,
        message.commit_index,
        message.hint,
        message.context,
        entries[0].index if count else 0,
    )
    if not count:
        return [head]
    if count == 1:
        _, entry_term, entry_kind, payload = entries[0]
        return [head + _ROW.pack(entry_term, len(payload), entry_kind), payload]
    payloads = [entry[3] for entry in entries]
    columns = zip([entry[1] for entry in entries], map(len, payloads), [entry[2] for entry in entries], strict=True)
    rows = _rows(count).pack(*chain.from_iterable(columns))
    return [head + rows, *payloads]


def decode_message(data: bytes | bytearray | memoryview) -> Message:
    """The message in a frame, checked; RemoteProtocolError says what was wrong with it."""
    size = len(data)
    if size < _HEAD.size:
        raise RemoteProtocolError(f"a raft message of {size} bytes is cut short")
    (
        version,
        kind,
        flags,
        zero,
        count,
        sender,
        receiver,
        term,
        log_index,
        log_term,
        commit_index,
        hint,
        context,
        first,
    ) = _HEAD.unpack_from(data)
    if version != VERSION:
        raise RemoteProtocolError(f"a raft message has version {version}; this broker knows {VERSION}: upgrade it")
    if kind not in _MESSAGE_KINDS or flags > _REJECTED or zero:
        raise RemoteProtocolError(
            f"a raft message of kind {kind} with flags {flags} is unknown here: upgrade this broker"
        )
    together = sender | receiver | term | log_index | log_term | commit_index | hint | context | first
    if not sender or not receiver or together > _NUMBER_MAX:
        raise RemoteProtocolError("a raft message names nobody, or carries a number beyond its bounds")
    entries: list[Entry] | tuple[()] = ()
    if count:
        _check_place(kind, count, log_index, first)
        entries = _decode_entries(data, count, first, term)
    elif size != _HEAD.size or first:
        raise RemoteProtocolError(f"a raft message without entries has {size - _HEAD.size} bytes behind its end")
    return Message(
        kind=kind,
        sender=sender,
        receiver=receiver,
        term=term,
        log_index=log_index,
        log_term=log_term,
        commit_index=commit_index,
        entries=entries,
        rejected=flags == _REJECTED,
        hint=hint,
        context=context,
    )


def _check_place(kind: int, count: int, log_index: int, first: int) -> None:
    if count > limits.RAFT_ENTRIES_PER_MESSAGE_MAX:
        raise RemoteProtocolError(
            f"a raft message claims {count} entries; at most {limits.RAFT_ENTRIES_PER_MESSAGE_MAX}"
        )
    if kind == MessageKind.APPEND:
        if first != log_index + 1:
            raise RemoteProtocolError(f"an append after {log_index} begins with entry {first}")
    elif kind != MessageKind.SNAPSHOT or count != 1 or first != log_index:
        raise RemoteProtocolError(f"a raft message of kind {kind} carries {count} entries that do not belong in it")


def _decode_entries(data: bytes | bytearray | memoryview, count: int, first: int, term: int) -> list[Entry]:
    start = _HEAD.size + _ROW.size * count
    if len(data) < start:
        raise RemoteProtocolError(f"a raft message with {count} entries is cut short")
    rows = _rows(count).unpack_from(data, _HEAD.size)
    terms, lengths, kinds = rows[::3], rows[1::3], rows[2::3]
    if max(lengths) > limits.RAFT_ENTRY_BYTES_MAX or start + sum(lengths) != len(data):
        raise RemoteProtocolError(
            f"the entries of a raft message claim {sum(lengths)} bytes; {len(data) - start} are there"
        )
    if not _ENTRY_KINDS.issuperset(kinds) or max(terms) > term or min(terms) < 1:
        raise RemoteProtocolError("a raft message carries entries of an unknown kind, or of a term after its own")
    entries: list[Entry] = []
    append = entries.append
    for index, (entry_term, length, kind) in enumerate(zip(terms, lengths, kinds, strict=True), first):
        stop = start + length
        append(_new(Entry, (index, entry_term, kind, bytes(data[start:stop]))))
        start = stop
    return entries
