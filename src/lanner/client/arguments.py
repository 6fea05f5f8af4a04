"""Check and convert what callers hand in: bytes, numbers, times. Each refusal names the argument."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from lanner import limits
from lanner.client.accumulator import side_bytes
from lanner.errors import MessageTooLarge, ValidationError
from lanner.model import parse_priority

DELIVER_AT_GRAIN_MS: Final = 100  # delays are rounded up to this, so that messages delayed alike share a batch

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Text = bytes | str
Moment = int | datetime


def value_bytes(value: object, what: str = "value", bytes_max: int = limits.MESSAGE_BYTES_MAX) -> bytes:
    """The bytes of a value or key; text is encoded as UTF-8."""
    if isinstance(value, str):
        value = _encoded(value, what)
    elif isinstance(value, bytearray | memoryview):
        value = bytes(value)
    elif not isinstance(value, bytes):
        raise ValidationError(f"{what} is {type(value).__name__}: give bytes or text", field=what)
    if len(value) > bytes_max:
        refusal = MessageTooLarge if what == "value" else ValidationError
        raise refusal(f"{what} has {len(value)} bytes; at most {bytes_max} are allowed", field=what)
    return value


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError(f"{what} is no text that UTF-8 can hold ({error.reason})", field=what) from None


def whole_number(value: object) -> int | None:
    """A whole number as Python's own, also one of another library, such as numpy; None for everything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def lane_number(priority: object) -> int:
    """The number of a priority."""
    number = whole_number(priority)
    return parse_priority(priority if number is None else number)  # type: ignore[arg-type]


def partition_number(partition: object) -> int:
    """The partition itself, if it may be one of some topic."""
    number = whole_number(partition)
    if number is None:
        raise ValidationError(f"partition is {partition!r}: give a whole number from 0", field="partition")
    return number


def partition_list(partitions: object) -> list[int] | None:
    """The partitions that a consumer or reader is told to keep to; one may stand alone. None: all."""
    if partitions is None:
        return None
    alone = isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable)
    given: Iterable[object] = [partitions] if alone else partitions  # type: ignore[assignment]
    found = []
    for one in given:
        number = whole_number(one)
        if number is None or not 0 <= number < limits.PARTITIONS_MAX:
            raise ValidationError(
                f"partitions is {one!r}: give whole numbers from 0 to {limits.PARTITIONS_MAX - 1}", field="partitions"
            )
        found.append(number)
    if not found:
        raise ValidationError("partitions is empty: name at least one, or leave it out for all", field="partitions")
    return found


def offset_map(offsets: object, what: str) -> dict[int, int]:
    """Offsets by partition; text for a number, as JSON has it, is refused, for it would name no partition."""
    if not isinstance(offsets, Mapping):
        raise ValidationError(f"{what} is {offsets!r}: give offsets by partition, such as {{0: 17}}", field=what)
    found = {}
    for partition, offset in offsets.items():
        number = whole_number(offset)
        if number is None or not 0 <= number <= limits.OFFSET_MAX:
            raise ValidationError(f"offset {offset!r} is not valid: give a whole number from 0", field=what)
        found[partition_number(partition)] = number
    return found


def key_bytes(key: object) -> bytes | None:
    return None if key is None else value_bytes(key, "key", limits.KEY_BYTES_MAX)


def dedup_bytes(dedup_id: object) -> bytes:
    if dedup_id is None:
        return b""
    found = value_bytes(dedup_id, "dedup_id", limits.DEDUP_ID_BYTES_MAX)
    if not found:
        raise ValidationError(
            "dedup_id is empty: leave it out, or give an id that is the message's own", field="dedup_id"
        )
    return found


def header_map(headers: Mapping[str, Text] | None) -> dict[str, bytes] | None:
    """Headers with their values as bytes."""
    if headers is not None and not isinstance(headers, Mapping):
        raise ValidationError(f"headers is {type(headers).__name__}: give a map of names and values", field="headers")
    if not headers:
        return None
    if len(headers) > limits.HEADER_COUNT_MAX:
        raise ValidationError(
            f"headers has {len(headers)} entries; at most {limits.HEADER_COUNT_MAX} are allowed", field="headers"
        )
    found: dict[str, bytes] = {}
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str):
            raise ValidationError(f"header name {name!r} is not text", field="headers")
        found[name] = value_bytes(value, f"header {name!r}", limits.HEADERS_BYTES_MAX)
        size += len(_encoded(name, "a header's name")) + len(found[name]) + 10
    if size > limits.HEADERS_BYTES_MAX:
        raise ValidationError(
            f"headers have {size} bytes; at most {limits.HEADERS_BYTES_MAX} are allowed", field="headers"
        )
    return found


def moment_ms(moment: Moment, what: str) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValidationError(f"{what} has no time zone: give an aware datetime, or milliseconds", field=what)
        moment = (moment - _EPOCH) // _MILLISECOND  # exact, unlike its timestamp as a float
    number = whole_number(moment)
    if number is None or not 0 <= number <= limits.TIME_MS_MAX:
        raise ValidationError(f"{what} is {moment!r}: give milliseconds since 1970 (UTC), or a datetime", field=what)
    return number


def moment_ms_from(moment: datetime, what: str) -> int:
    """The first millisecond that does not begin before the moment."""
    began_ms = moment_ms(moment, what)
    return began_ms if moment.microsecond % 1_000 == 0 else began_ms + 1


def _span_ms(span: object, what: str) -> int:
    number = span if isinstance(span, float) else whole_number(span)
    if number is None or not 0 <= number <= limits.DELAY_MS_MAX:
        raise ValidationError(f"{what} is {span!r}: give milliseconds from 0 to {limits.DELAY_MS_MAX}", field=what)
    return round(number)


def deliver_moment(delay_ms: float | None, deliver_at: Moment | None, now_ms: Callable[[], int]) -> int:
    """When the message may first be delivered; 0: at once."""
    if delay_ms is not None and deliver_at is not None:
        raise ValidationError("both delay_ms and deliver_at are given: choose one", field="delay_ms")
    if deliver_at is not None:
        return moment_ms(deliver_at, "deliver_at")
    if delay_ms is None or not _span_ms(delay_ms, "delay_ms"):
        return 0
    exact = now_ms() + _span_ms(delay_ms, "delay_ms")
    return -(-exact // DELIVER_AT_GRAIN_MS) * DELIVER_AT_GRAIN_MS


def expiry_moment(ttl_ms: float | None, expires_at: Moment | None, now_ms: Callable[[], int]) -> int:
    """When the message is no longer worth delivering; 0: never."""
    if ttl_ms is not None and expires_at is not None:
        raise ValidationError("both ttl_ms and expires_at are given: choose one", field="ttl_ms")
    if expires_at is not None:
        return moment_ms(expires_at, "expires_at")
    if ttl_ms is None:
        return 0
    span = _span_ms(ttl_ms, "ttl_ms")
    if not span:
        raise ValidationError("ttl_ms is 0: the message would expire before anybody saw it", field="ttl_ms")
    return now_ms() + span


def column_bytes(values: Sequence[Text]) -> list[bytes]:
    """A column of values; checked as a whole where all are bytes already."""
    _check_column("values", values)
    found = list(values)
    if not found:
        raise ValidationError("values is empty: give at least one", field="values")
    if set(map(type, found)) != {bytes} or max(map(len, found)) > limits.MESSAGE_BYTES_MAX:
        return [value_bytes(value) for value in found]
    return found  # type: ignore[return-value]


def split_by_size(lengths: Sequence[int], bytes_max: int, count_max: int) -> list[tuple[int, int]]:
    """Cut a column into runs [start, stop) that stay within both bounds; a single larger item is a run of its own."""
    total = sum(lengths)
    if total <= bytes_max and len(lengths) <= count_max:
        return [(0, len(lengths))]
    longest = max(lengths)
    if longest * count_max <= bytes_max:  # the count alone decides
        return [(start, min(start + count_max, len(lengths))) for start in range(0, len(lengths), count_max)]
    runs = []
    start = size = 0
    for place, length in enumerate(lengths):
        if place > start and (size + length > bytes_max or place - start >= count_max):
            runs.append((start, place))
            start, size = place, 0
        size += length
    runs.append((start, len(lengths)))
    return runs


def check_timeout_ms(timeout_ms: float) -> float:
    if not _is_number(timeout_ms) or not 0 < timeout_ms <= limits.DELAY_MS_MAX:
        raise ValidationError(f"timeout_ms is {timeout_ms!r}: give milliseconds above 0", field="timeout_ms")
    return timeout_ms


def check_wait_ms(wait_ms: float) -> None:
    if not _is_number(wait_ms) or not 0 <= wait_ms <= limits.DELAY_MS_MAX:
        raise ValidationError(f"wait_ms is {wait_ms!r}: give milliseconds from 0", field="wait_ms")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_bound(name: str, value: float, low: float, high: float) -> None:
    if not _is_number(value) or not low <= value <= high:
        raise ValidationError(f"{name} is {value!r}: give a number from {low} to {high}", field=name)


def checked_column(
    name: str, column: Sequence[Any] | None, count: int, clean: Callable[[Any], Any]
) -> list[Any] | None:
    """A column beside the values, each item cleaned."""
    if column is None:
        return None
    _check_column(name, column)
    column = list(column)
    if len(column) != count:
        raise ValidationError(f"{name} has {len(column)} entries for {count} values", field=name)
    return [clean(item) for item in column]


def _check_column(name: str, column: object) -> None:
    """Refuse what is one value, not many: the letters of a text are seldom meant as messages."""
    if isinstance(column, str | bytes | bytearray | memoryview | Mapping) or not isinstance(column, Iterable):
        raise ValidationError(f"{name} is {type(column).__name__}: give a list, one entry for each message", field=name)


class Columns(NamedTuple):
    """Many messages, checked, as `publish_many` got them."""

    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[dict[str, bytes] | None] | None
    deliver_at_ms: int
    expires_at_ms: int

    def sizes(self, places: Sequence[int] | None) -> list[int]:
        """The bytes of each of these messages, keys and headers included."""
        keys, headers = self.keys, self.headers
        sizes = list(map(len, self.values if places is None else [self.values[place] for place in places]))
        if keys is None and headers is None:
            return sizes
        for row, place in enumerate(range(len(sizes)) if places is None else places):
            sizes[row] += side_bytes(None if keys is None else keys[place], None if headers is None else headers[place])
        return sizes
