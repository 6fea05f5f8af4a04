"""Groups that have members: their rows, and the tables of them in memory.

A *group* has a number, which is never given twice, and a generation, which rises with every change of it. Its version
rises only when the question changes that an assignor answers: members, subscriptions, partitions, assignor. A *grant*
is the generation in which a partition was given to its owner; the *heir* follows once the owner has given up.

This module knows rows, keys and what is derived from them. It refuses to know any rule: `grouping` has those. Rows are
replaced, never changed in place, but for the owners of a topic's partitions: those are lists, by partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from lanner.cluster.globs import matches
from lanner.model import GroupKind, TopicPartitionId

NOBODY: Final = 0

_NUMBER_BYTES: Final = 8


class Subscription(msgspec.Struct, array_like=True, frozen=True):
    topics: tuple[str, ...]  # in order, each once
    patterns: tuple[str, ...]

    def wants(self, topic: str) -> bool:
        return topic in self.topics or any(matches(pattern, topic) for pattern in self.patterns)


class Rebalance(msgspec.Struct, array_like=True, frozen=True):
    """Partitions went from members to others, or to their first one."""

    begun_ms: int  # when what caused it happened
    reason: str
    moved: int
    partitions: int  # of all topics that the group wants
    ended_ms: int = 0  # 0: some wait for their owners to give up


class GroupRow(msgspec.Struct, array_like=True, frozen=True):
    number: int
    name: str
    kind: GroupKind
    assignor: str
    session_ms: int
    revoke_ms: int
    generation: int = 0
    version: int = 0
    shared_since: int = 0  # 0: partitions are assigned
    subscriptions: dict[int, Subscription] = {}  # in the order of their numbers
    rebalances: tuple[Rebalance, ...] = ()
    changed_ms: int = 0  # when the version changed last,
    reason: str = ""  # and why
    generation_ms: int = 0  # when anything changed last


class MemberRow(msgspec.Struct, array_like=True, frozen=True):
    number: int
    member: str  # the id
    subscription: int
    joined_ms: int
    instance: str = ""
    session_ms: int = 0  # 0: the group's
    rack: str = ""
    client: str = ""
    door: str = ""
    opaque: bytes = b""
    replaced: tuple[str, ...] = ()  # ids that this instance had before, the latest last


class OwnersRow(msgspec.Struct, array_like=True):
    """By partition: who owns it, since which generation, and who follows."""

    owners: list[int]
    grants: list[int]
    heirs: list[int]
    first: int  # how many partitions there were when the group first wanted the topic

    def grow(self, count: int) -> None:
        for column in (self.owners, self.grants, self.heirs):
            column += [NOBODY] * (count - len(column))


class Rows(Protocol):
    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]: ...


class Group:
    """One group with what is derived from its rows."""

    def __init__(self, row: GroupRow) -> None:
        self.row = row
        self.members: dict[int, MemberRow] = {}  # by number
        self.ids: dict[str, int] = {}
        self.instances: dict[str, int] = {}
        self.replaced: dict[str, int] = {}  # ids of processes that were taken over → number of who did
        self.owners: dict[int, OwnersRow] = {}  # by incarnation
        self.owned: dict[int, set[TopicPartitionId]] = {}  # member → what it owns
        self.inherited: dict[int, set[TopicPartitionId]] = {}  # member → what it is to follow in
        self.wanted: dict[int, frozenset[int]] = {}  # subscription → incarnations
        self.seen: dict[int, int] = {}  # member → the generation in which its own view changed last

    @property
    def shared(self) -> bool:
        return self.row.shared_since > 0

    @property
    def handing_over(self) -> bool:
        """Whether some partition waits for its owner to give it up."""
        return bool(self.inherited)

    def member(self, member_id: str) -> MemberRow | None:
        number = self.ids.get(member_id)
        return None if number is None else self.members[number]

    def session_ms(self, member: MemberRow) -> int:
        return member.session_ms or self.row.session_ms

    def topics_of(self, member: MemberRow) -> frozenset[int]:
        return self.wanted[member.subscription]

    def topics(self) -> frozenset[int]:
        """What some member wants now."""
        return frozenset().union(*self.wanted.values())

    def owner_of(self, partition_id: TopicPartitionId) -> tuple[int, int, int]:
        """(owner, grant, heir) of a partition; nobody, where the group does not know it."""
        row = self.owners.get(partition_id[0])
        if row is None or not 0 <= partition_id[1] < len(row.owners):
            return NOBODY, 0, NOBODY
        return row.owners[partition_id[1]], row.grants[partition_id[1]], row.heirs[partition_id[1]]

    def add_member(self, one: MemberRow) -> None:
        self.members[one.number] = one
        self.ids[one.member] = one.number
        if one.instance:
            self.instances[one.instance] = one.number
        self.replaced.update(dict.fromkeys(one.replaced, one.number))
        self.seen[one.number] = self.row.generation

    def remove_member(self, one: MemberRow) -> None:
        del self.members[one.number], self.ids[one.member], self.seen[one.number]
        if one.instance:
            del self.instances[one.instance]
        for member_id in one.replaced:
            del self.replaced[member_id]

    def set_owner(self, partition_id: TopicPartitionId, owner: int, grant: int, heir: int) -> None:
        """Change one partition, and note in which members' views that shows."""
        row, at = self.owners[partition_id[0]], partition_id[1]
        before, heir_before = row.owners[at], row.heirs[at]
        row.owners[at], row.grants[at], row.heirs[at] = owner, grant, heir
        _shift(self.owned, partition_id, before, owner)
        _shift(self.inherited, partition_id, heir_before, heir)

    def note_seen(self, number: int) -> None:
        if number in self.seen:
            self.seen[number] = self.row.generation


def _shift(index: dict[int, set[TopicPartitionId]], partition_id: TopicPartitionId, before: int, after: int) -> None:
    if before == after:
        return
    if before != NOBODY:
        left = index[before]
        left.remove(partition_id)
        if not left:
            del index[before]
    if after != NOBODY:
        index.setdefault(after, set()).add(partition_id)


class GroupTable:
    """Every group, by number and by name; totals that bounds are held against; which groups changed lately."""

    def __init__(self, touch: Callable[[bytes], None]) -> None:
        """`touch` is told the key of every row that changes."""
        self._touch = touch
        self.groups: dict[int, Group] = {}
        self.numbers: dict[str, int] = {}
        self.subscribed: dict[int, set[int]] = {}  # incarnation → groups with a row of its owners
        self.names: dict[int, str] = {}  # of those topics
        self.named: dict[str, set[int]] = {}  # topic's name → groups with a subscription to that name
        self.patterned: set[int] = set()  # groups with patterns
        self.member_count = self.opaque_bytes = self.partition_count = self.pattern_count = 0
        self._changed: set[int] = set()

    def load(self, rows: Rows, names: Mapping[int, str]) -> None:
        """Read what was saved. `names`: of topics, by incarnation."""
        for _, value in rows.scan(b"g", b"h"):
            self._index_group(Group(_decode_group(value)))
        for key, value in rows.scan(b"o", b"p"):
            incarnation = _number(key, 1)
            self._index_owners(_number(key, 0), incarnation, names[incarnation], _decode_owners(value))
        for key, value in rows.scan(b"i", b"j"):
            self._index_member(self.groups[_number(key, 0)], _decode_member(value))
        for group in self.groups.values():
            for number, subscription in group.row.subscriptions.items():
                group.wanted[number] = frozenset(one for one in group.owners if subscription.wants(names[one]))

    def by_name(self, name: str) -> Group | None:
        number = self.numbers.get(name)
        return None if number is None else self.groups[number]

    def take_changed(self) -> set[int]:
        """The numbers of groups that changed, or went, since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    # ------------------------------------------------------------------ changes

    def put_group(self, group: Group, row: GroupRow) -> None:
        """Give a group another row; one that is new here is added."""
        known = self.groups.get(row.number)
        if known is None:
            group.row = row
            self._index_group(group)
        elif known.row.subscriptions is not row.subscriptions:
            self._unlist(known.row)
            known.row = row
            self._list(row)
        else:
            known.row = row
        self._touch(_key(b"g", row.number))
        self._changed.add(row.number)

    def drop_group(self, group: Group) -> None:
        number = group.row.number
        assert not group.members
        for incarnation in list(group.owners):
            self.drop_owners(group, incarnation)
        self._unlist(group.row)
        del self.groups[number], self.numbers[group.row.name]
        self._touch(_key(b"g", number))
        self._changed.add(number)

    def put_member(self, group: Group, one: MemberRow) -> None:
        self._index_member(group, one)
        self._touch(_key(b"i", group.row.number, one.number))

    def drop_member(self, group: Group, one: MemberRow) -> None:
        group.remove_member(one)
        self.member_count -= 1
        self.opaque_bytes -= len(one.opaque)
        self._touch(_key(b"i", group.row.number, one.number))

    def put_owners(self, group: Group, incarnation: int, name: str, row: OwnersRow) -> None:
        self._index_owners(group.row.number, incarnation, name, row)
        self.touch_owners(group, incarnation)

    def grow_owners(self, group: Group, incarnation: int, count: int) -> None:
        row = group.owners[incarnation]
        self.partition_count += count - len(row.owners)
        row.grow(count)
        self.touch_owners(group, incarnation)

    def drop_owners(self, group: Group, incarnation: int) -> None:
        """Forget a topic's partitions, which nobody owns or inherits any more."""
        self.partition_count -= len(group.owners.pop(incarnation).owners)
        left = self.subscribed[incarnation]
        left.remove(group.row.number)
        if not left:
            del self.subscribed[incarnation], self.names[incarnation]
        self.touch_owners(group, incarnation)

    def touch_owners(self, group: Group, incarnation: int) -> None:
        self._touch(_key(b"o", group.row.number, incarnation))

    # ------------------------------------------------------------------ what is derived

    def _index_group(self, group: Group) -> None:
        self.groups[group.row.number] = group
        self.numbers[group.row.name] = group.row.number
        self._list(group.row)

    def _index_member(self, group: Group, one: MemberRow) -> None:
        group.add_member(one)
        self.member_count += 1
        self.opaque_bytes += len(one.opaque)

    def _index_owners(self, number: int, incarnation: int, name: str, row: OwnersRow) -> None:
        group = self.groups[number]
        group.owners[incarnation] = row
        self.subscribed.setdefault(incarnation, set()).add(number)
        self.names[incarnation] = name
        self.partition_count += len(row.owners)
        for index, column in ((group.owned, row.owners), (group.inherited, row.heirs)):
            for at, member in enumerate(column):
                _shift(index, (incarnation, at), NOBODY, member)

    def _list(self, row: GroupRow) -> None:
        for topic in _names(row.subscriptions.values()):
            self.named.setdefault(topic, set()).add(row.number)
        count = sum(len(one.patterns) for one in row.subscriptions.values())
        self.pattern_count += count
        if count:
            self.patterned.add(row.number)

    def _unlist(self, row: GroupRow) -> None:
        for topic in _names(row.subscriptions.values()):
            left = self.named[topic]
            left.remove(row.number)
            if not left:
                del self.named[topic]
        self.pattern_count -= sum(len(one.patterns) for one in row.subscriptions.values())
        self.patterned.discard(row.number)

    # ------------------------------------------------------------------ rows

    def keys(self) -> Iterator[bytes]:
        for number, group in self.groups.items():
            yield _key(b"g", number)
            yield from (_key(b"i", number, member) for member in group.members)
            yield from (_key(b"o", number, incarnation) for incarnation in group.owners)

    def encode(self, key: bytes) -> bytes | None:
        """The row of a key; None: it is gone."""
        group = self.groups.get(_number(key, 0))
        if group is None:
            return None
        if key[:1] == b"g":
            return msgspec.msgpack.encode(group.row)
        table: Mapping[int, object] = group.members if key[:1] == b"i" else group.owners
        found = table.get(_number(key, 1))
        return None if found is None else msgspec.msgpack.encode(found)


KEYS: Final = (b"g", b"i", b"o")

_decode_group: Final = msgspec.msgpack.Decoder(GroupRow).decode
_decode_member: Final = msgspec.msgpack.Decoder(MemberRow).decode
_decode_owners: Final = msgspec.msgpack.Decoder(OwnersRow).decode


def _names(subscriptions: Iterable[Subscription]) -> set[str]:
    return {topic for one in subscriptions for topic in one.topics}


def _key(prefix: bytes, *numbers: int) -> bytes:
    return prefix + b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in numbers)


def _number(key: bytes, place: int) -> int:
    start = 1 + place * _NUMBER_BYTES
    return int.from_bytes(key[start : start + _NUMBER_BYTES], "big")
