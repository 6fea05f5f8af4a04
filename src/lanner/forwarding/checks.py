"""What a call may ask for, judged before anything is done about it."""

from __future__ import annotations

from collections.abc import Sequence

from lanner import limits
from lanner.errors import PartitionNotFound, ValidationError
from lanner.forwarding.ports import KnownTopic
from lanner.model import LANES
from lanner.wire.messages import Poll, SettleItem


def check_number(what: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValidationError(f"{what} is {value!r}: it must be a whole number from {low} to {high}", field=what)


def check_poll(call: Poll) -> None:
    if not 1 <= len(call.member) <= limits.MEMBER_LENGTH_MAX:
        raise ValidationError(f"member must have 1 to {limits.MEMBER_LENGTH_MAX} characters", field="member")
    check_number("sequence", call.sequence, -1, limits.OFFSET_MAX // 16)
    check_number("max_messages", call.max_messages, 1, limits.POLL_MESSAGES_MAX)
    check_number("max_bytes", call.max_bytes, 1, limits.POLL_BYTES_MAX)
    check_number("wait_ms", call.wait_ms, 0, limits.POLL_WAIT_MS_MAX)
    if call.lease_ms != -1:
        check_number("lease_ms", call.lease_ms, limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)
    check_number("min_priority", call.min_priority, 0, LANES - 1)
    check_start(call.start)


def check_start(start: str) -> None:
    if start not in ("earliest", "latest"):
        raise ValidationError(f"start is {start!r}: choose earliest or latest", field="start")


def check_settle(item: SettleItem) -> None:
    check_number("token", item.token, 0, limits.OFFSET_MAX)
    check_number("first_offset", item.first_offset, 0, limits.OFFSET_MAX)
    check_number("count", item.count, 1, limits.OUTSTANDING_MAX)
    check_number("kind", item.kind, 1, 4)
    check_number("delay_ms", item.delay_ms, -1, limits.DELAY_MS_MAX)
    if len(item.reason) > limits.REASON_LENGTH_MAX:
        raise ValidationError(f"reason may have {limits.REASON_LENGTH_MAX} characters", field="reason")


def chosen_partitions(topic: KnownTopic, partitions: Sequence[int] | None) -> list[int]:
    """These partitions, each once and each there; all of them for None."""
    if partitions is None:
        return list(range(len(topic.set_ids)))
    chosen = list(dict.fromkeys(partitions))
    for partition in chosen:
        check_partition(topic, partition)
    return chosen


def check_partition(topic: KnownTopic, partition: int) -> None:
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < len(topic.set_ids):
        raise PartitionNotFound(
            f"topic {topic.name!r} has partitions 0 to {len(topic.set_ids) - 1}, not {partition!r}",
            topic=topic.name,
            partition=partition,
        )
