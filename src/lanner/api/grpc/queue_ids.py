"""Queue's ids: partitions as TOPIC-N, and messages as what an ack needs to know.

A received message is known by `TOPIC/PARTITION/OFFSET#TOKEN#GROUP#CONSUMER`. So the ack of it can be taken by any
broker, also after the one that handed it out is gone, and counts only for the lease that this consumer was given.
A message that was only sent has no lease: its id ends before the first `#`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lanner import limits
from lanner.errors import PartitionNotFound, ValidationError

MESSAGE_ID_BYTES_MAX: Final = 4 * limits.NAME_LENGTH_MAX
_NUMBER: Final = r"(0|[1-9][0-9]{0,15})"
_NAME: Final = r"([A-Za-z0-9._-]{1,200})"
_PARTITION: Final = re.compile(rf"{_NAME}-{_NUMBER}\Z", re.ASCII)
_SENT: Final = re.compile(rf"{_NAME}/{_NUMBER}/{_NUMBER}\Z", re.ASCII)
_RECEIVED: Final = re.compile(rf"{_NAME}/{_NUMBER}/{_NUMBER}#{_NUMBER}#{_NAME}#([^\x00-\x1f\x7f]{{1,200}})\Z", re.ASCII)


class Receipt(NamedTuple):
    """What the id of a received message says."""

    topic: str
    partition: int
    offset: int
    token: int
    group: str
    consumer: str

    def to_bytes(self) -> bytes:
        place = f"{self.topic}/{self.partition}/{self.offset}"
        return f"{place}#{self.token}#{self.group}#{self.consumer}".encode()


def partition_id(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_id(text: str) -> tuple[str, int]:
    """Topic and partition."""
    found = _PARTITION.match(text)
    if found is None:
        raise ValidationError(f"partition_id is {text[:80]!r}: give TOPIC-N, such as orders-0", field="partition_id")
    number = int(found[2])
    if number >= limits.PARTITIONS_MAX:
        raise PartitionNotFound(f"{found[1]} has no partition {number}")
    return found[1], number


def check_consumer(text: str) -> str:
    """A consumer's id, if it may be one."""
    if not 1 <= len(text) <= limits.MEMBER_LENGTH_MAX or not text.isprintable():
        raise ValidationError(
            f"consumer_id {text[:80]!r} is not valid: use 1 to {limits.MEMBER_LENGTH_MAX} visible characters",
            field="consumer_id",
        )
    return text


def parse_receipt(data: bytes) -> Receipt:
    """What AckMessage was given."""
    try:
        text = data[: MESSAGE_ID_BYTES_MAX + 1].decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    found = _RECEIVED.match(text)
    if found is None:
        if _SENT.match(text):
            what = f"message_id {text!r} is that of a message that was sent: ack the id under which it was received"
        else:
            what = "message_id is none that was given out here: ack the id of a message that was received"
        raise ValidationError(what, field="message_id")
    topic, partition, offset, token, group, consumer = found.groups()
    return Receipt(topic, int(partition), int(offset), int(token), group, consumer)
