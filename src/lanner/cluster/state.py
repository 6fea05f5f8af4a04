"""The tables of the metadata machine in memory, each row also as bytes, and which rows changed since the last save.

This module knows keys, rows and the indexes that are derived from them (what a broker holds and should lead,
which moves and which tries a set has). It refuses to know any rule: the module that puts a row here has checked it.

Iteration over moves, plans, sets and tries is in the order of their ids, because ids only rise and rows are loaded in
key order; over transactions in the order of their last use. Brokers and topics have no such order, so code that depends
on one sorts them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from lanner import features
from lanner.cluster.grouped import KEYS as GROUP_KEYS
from lanner.cluster.grouped import GroupTable
from lanner.cluster.settings import written
from lanner.cluster.staged import Hashes, Transaction, Try
from lanner.cluster.values import METADATA_SET, Broker, BrokerState, Move, Plan, ReplicaSet
from lanner.model import TopicSettings

_COUNTERS_KEY: Final = b"c"
_CHANGED_TRIES_MAX: Final = 10_000
_NUMBER_BYTES: Final = 8


class Rows(Protocol):
    """Where the saved state comes from."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]: ...


class Topic(NamedTuple):
    """One topic. Its incarnation tells it from an earlier one of the same name."""

    name: str
    incarnation: int
    settings: TopicSettings
    set_ids: tuple[int, ...]  # by partition
    created_ms: int
    create_id: str = ""  # of the create that made it; empty: made below level 2
    grows: bool = False  # it asked for no number of replicas: it has three once there are three brokers


class Counters(msgspec.Struct, array_like=True):
    """What only rises, and the cluster's own id. New fields go to the end, so that older rows still load."""

    applied_index: int = 0
    next_set_id: int = 1  # 0 is this machine's own set
    next_incarnation: int = 1
    next_producer_id: int = 1  # 0 means no producer
    feature_level: int = features.LOWEST
    cluster_id: str = ""  # empty: one broker that was never told of others
    next_move_id: int = 1
    next_plan_id: int = 1
    machine_ms: int = 0  # the latest time that a command brought
    next_group: int = 1  # this and what follows: written only once there was a group with members
    next_member: int = 1

    def written(self) -> tuple[object, ...]:
        fields: tuple[object, ...] = msgspec.structs.astuple(self)
        return fields if self.next_group > 1 else fields[:_FIELDS_WITHOUT_GROUPS]


_FIELDS_WITHOUT_GROUPS: Final = len(msgspec.structs.fields(Counters)) - 2


class _TopicRow(msgspec.Struct, array_like=True, frozen=True):
    incarnation: int
    settings: dict[str, Any]
    set_ids: tuple[int, ...]
    created_ms: int
    create_id: str = ""
    grows: bool = False  # written only where it holds, which it does from level 6 on

    def written(self) -> tuple[object, ...]:
        fields: tuple[object, ...] = msgspec.structs.astuple(self)
        return fields if self.grows else fields[:-1]


_decode_counters: Final = msgspec.msgpack.Decoder(Counters).decode
_decode_topic: Final = msgspec.msgpack.Decoder(_TopicRow).decode
_decode_broker: Final = msgspec.msgpack.Decoder(Broker).decode
_decode_set: Final = msgspec.msgpack.Decoder(ReplicaSet).decode
_decode_move: Final = msgspec.msgpack.Decoder(Move).decode
_decode_plan: Final = msgspec.msgpack.Decoder(Plan).decode
_decode_transaction: Final = msgspec.msgpack.Decoder(Transaction).decode
_decode_try: Final = msgspec.msgpack.Decoder(Try).decode


class State:
    """Every table of the machine. Puts and drops mark rows dirty; values are replaced, never changed in place."""

    def __init__(self, rows: Rows) -> None:
        counters = rows.get(_COUNTERS_KEY)
        self.counters = Counters() if counters is None else _decode_counters(counters)
        self.topics: dict[str, Topic] = {}
        for key, value in rows.scan(b"t", b"u"):
            name, row = key[1:].decode(), _decode_topic(value)
            settings = TopicSettings.from_dict(row.settings)
            made = (row.created_ms, row.create_id, row.grows)
            self.topics[name] = Topic(name, row.incarnation, settings, row.set_ids, *made)
        self.brokers = {broker.node_id: broker for broker in map(_decode_broker, _values(rows, b"b"))}
        self.sets: dict[int, ReplicaSet] = {}
        self.moves: dict[int, Move] = {}
        self.plans = {plan.plan_id: plan for plan in map(_decode_plan, _values(rows, b"p"))}
        self.held: dict[str, set[int]] = {}  # node id -> partitions' sets with a replica there
        self.led: dict[str, int] = {}  # node id -> how many of them it should lead
        self.moves_of: dict[int, dict[int, Move]] = {}  # set id -> its moves
        self.started: set[int] = set()  # ids of the moves that are under way
        self.partition_count = sum(len(topic.set_ids) for topic in self.topics.values())
        used = sorted(map(_decode_transaction, _values(rows, b"x")), key=lambda one: (one.used_ms, one.name))
        self.transactions = {one.name: one for one in used}  # the longest unused first
        self.once = {one.name: None for one in used if one.once}  # likewise
        self.tries: dict[int, Try] = {}  # by token
        self.participant_count = 0  # of all tries
        self.tries_of: dict[int, dict[int, Try]] = {}  # set id -> the tries that name it, by token
        self.forgotten = Hashes((key[1], packed) for key, packed in rows.scan(b"z", b"{"))
        self.unsettled = False  # something changed that plans depend on
        self.arrived: list[str] = []  # brokers that may be given something from this command on
        self._dirty: set[bytes] = set()
        self._changed_tries: dict[int, None] | None = None  # None: any of them
        for found in map(_decode_set, _values(rows, b"r")):
            self.sets[found.set_id] = found
            self._index(found, 1)
        for move in map(_decode_move, _values(rows, b"m")):
            self._index_move(move)
        for one in map(_decode_try, _values(rows, b"y")):
            self._index_try(one)
        names = {topic.incarnation: topic.name for topic in self.topics.values()}
        self.groups = GroupTable(lambda key: self._dirty.add(key))
        if self.counters.next_group > 1:
            self.groups.load(rows, names)

    # ------------------------------------------------------------------ changes

    def touch_counters(self) -> None:
        self._dirty.add(_COUNTERS_KEY)

    def put_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self._dirty.add(_topic_key(topic.name))

    def drop_topic(self, name: str) -> None:
        del self.topics[name]
        self._dirty.add(_topic_key(name))

    def put_broker(self, broker: Broker) -> None:
        if broker.state is BrokerState.ACTIVE and not self.is_active(broker.node_id):
            self.arrived.append(broker.node_id)
        self.brokers[broker.node_id] = broker
        self._dirty.add(b"b" + broker.node_id.encode())
        self.unsettled = True

    def drop_broker(self, node_id: str) -> None:
        del self.brokers[node_id]
        self._dirty.add(b"b" + node_id.encode())

    def put_set(self, replica_set: ReplicaSet) -> None:
        before = self.sets.get(replica_set.set_id)
        if before is not None:
            self._index(before, -1)
        self.sets[replica_set.set_id] = replica_set
        self._index(replica_set, 1)
        self._dirty.add(_number_key(b"r", replica_set.set_id))

    def drop_set(self, set_id: int) -> None:
        self._index(self.sets.pop(set_id), -1)
        self._dirty.add(_number_key(b"r", set_id))

    def put_move(self, move: Move) -> None:
        self._index_move(move)
        self._dirty.add(_number_key(b"m", move.move_id))

    def _index_move(self, move: Move) -> None:
        self.moves[move.move_id] = move
        self.moves_of.setdefault(move.set_id, {})[move.move_id] = move
        if move.started:
            self.started.add(move.move_id)

    def drop_move(self, move_id: int) -> None:
        move = self.moves.pop(move_id)
        self.started.discard(move_id)
        left = self.moves_of[move.set_id]
        del left[move_id]
        if not left:
            del self.moves_of[move.set_id]
        self._dirty.add(_number_key(b"m", move_id))
        self.unsettled = True

    def put_plan(self, plan: Plan) -> None:
        self.plans[plan.plan_id] = plan
        self._dirty.add(_number_key(b"p", plan.plan_id))

    def drop_plan(self, plan_id: int) -> None:
        del self.plans[plan_id]
        self._dirty.add(_number_key(b"p", plan_id))

    def put_transaction(self, one: Transaction) -> None:
        """A row whose time of use has changed goes to the end; time never goes back here."""
        before = self.transactions.get(one.name)
        if before is not None and before.used_ms != one.used_ms:
            del self.transactions[one.name]
            self.once.pop(one.name, None)
        self.transactions[one.name] = one
        if one.once:
            self.once[one.name] = None
        else:
            self.once.pop(one.name, None)
        self._dirty.add(_transaction_key(one.name))

    def drop_transaction(self, name: str) -> None:
        del self.transactions[name]
        self.once.pop(name, None)
        self._dirty.add(_transaction_key(name))

    def put_try(self, one: Try) -> None:
        before = self.tries.get(one.token)
        if before is not None:
            self._unindex_try(before, set(before.set_ids).difference(one.set_ids))
        self._index_try(one)
        self._touch_try(one.token)

    def _index_try(self, one: Try) -> None:
        self.tries[one.token] = one
        for set_id in one.set_ids:
            tries = self.tries_of.setdefault(set_id, {})
            self.participant_count += one.token not in tries
            tries[one.token] = one

    def drop_try(self, token: int) -> None:
        one = self.tries.pop(token)
        self._unindex_try(one, one.set_ids)
        self._touch_try(token)

    def _touch_try(self, token: int) -> None:
        self._dirty.add(_number_key(b"y", token))
        changed = self._changed_tries
        if changed is not None:
            changed[token] = None
            if len(changed) > _CHANGED_TRIES_MAX:
                self._changed_tries = None  # nobody asks, or not often enough to be told each one

    def _unindex_try(self, one: Try, set_ids: Collection[int]) -> None:
        for set_id in set_ids:
            left = self.tries_of[set_id]
            del left[one.token]
            self.participant_count -= 1
            if not left:
                del self.tries_of[set_id]

    def note_forgotten(self, name: str) -> None:
        self._dirty.add(_hashes_key(self.forgotten.add(name)))

    def drop_forgotten(self, name: str) -> None:
        self._dirty.add(_hashes_key(self.forgotten.discard(name)))

    def clear_forgotten(self) -> None:
        self._dirty.update(map(_hashes_key, self.forgotten.clear()))

    def _index(self, replica_set: ReplicaSet, change: int) -> None:
        """Count a set in, or out, of what its brokers hold; the metadata is held by all and counts for nobody."""
        if replica_set.set_id == METADATA_SET:
            return
        for replica in replica_set.replicas:
            holdings = self.held.setdefault(replica.node_id, set())
            (holdings.add if change > 0 else holdings.discard)(replica_set.set_id)
            if replica.replica_id == replica_set.preferred:
                self.led[replica.node_id] = self.led.get(replica.node_id, 0) + change

    # ------------------------------------------------------------------ questions that everybody has

    @property
    def founded(self) -> bool:
        return self.counters.cluster_id != ""

    def active(self) -> list[Broker]:
        """The brokers that may be given something, by node id."""
        return [one for _, one in sorted(self.brokers.items()) if one.state is BrokerState.ACTIVE]

    def live(self) -> list[Broker]:
        """The brokers that are not removed, by node id."""
        return [one for _, one in sorted(self.brokers.items()) if one.state is not BrokerState.REMOVED]

    def moves_on(self, set_id: int) -> Collection[Move]:
        """The moves of one set that are not finished, oldest first."""
        found = self.moves_of.get(set_id)
        return () if found is None else found.values()

    def tries_on(self, set_id: int) -> Mapping[int, Try]:
        """The tries that name a set, oldest first, by token."""
        return self.tries_of.get(set_id, _NO_TRIES)

    def is_active(self, node_id: str) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and broker.state is BrokerState.ACTIVE

    # ------------------------------------------------------------------ saving

    def take_changed_tries(self) -> list[int] | None:
        changed, self._changed_tries = self._changed_tries, {}
        return None if changed is None else list(changed)

    def take_dirty(self) -> dict[bytes, bytes | None]:
        """The rows that changed since the last call; None: the row is gone."""
        dirty, self._dirty = self._dirty, set()
        return {key: self._encode(key) for key in sorted(dirty)}

    def all_rows(self) -> dict[bytes, bytes]:
        """The whole state, one canonical row for each thing in it."""
        keys = [_COUNTERS_KEY, *map(_topic_key, self.topics), *(b"b" + node_id.encode() for node_id in self.brokers)]
        tables: tuple[tuple[bytes, Collection[int]], ...] = (
            (b"r", self.sets),
            (b"m", self.moves),
            (b"p", self.plans),
            (b"y", self.tries),
        )
        for prefix, table in tables:
            keys += [_number_key(prefix, number) for number in table]
        keys += [*map(_transaction_key, self.transactions), *map(_hashes_key, self.forgotten), *self.groups.keys()]
        encoded = {key: self._encode(key) for key in sorted(keys)}
        return {key: value for key, value in encoded.items() if value is not None}

    def _encode(self, key: bytes) -> bytes | None:
        kind, rest = key[:1], key[1:]
        if kind == b"t":
            topic = self.topics.get(rest.decode())
            if topic is None:
                return None
            settings = written(topic.settings)
            made = (topic.created_ms, topic.create_id, topic.grows)
            return msgspec.msgpack.encode(_TopicRow(topic.incarnation, settings, topic.set_ids, *made).written())
        if kind == b"z":
            return self.forgotten.packed(rest[0])
        if kind in GROUP_KEYS:
            return self.groups.encode(key)
        found: object
        if kind == _COUNTERS_KEY:
            found = self.counters.written()
        elif kind == b"b":
            found = self.brokers.get(rest.decode())
        elif kind == b"r":
            found = self.sets.get(int.from_bytes(rest, "big"))
        elif kind == b"m":
            found = self.moves.get(int.from_bytes(rest, "big"))
        elif kind == b"x":
            found = self.transactions.get(rest.decode())
        elif kind == b"y":
            found = self.tries.get(int.from_bytes(rest, "big"))
        else:
            found = self.plans.get(int.from_bytes(rest, "big"))
        return None if found is None else _encoder.encode(found)


_NO_TRIES: Final[Mapping[int, Try]] = {}
_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")


def _values(rows: Rows, prefix: bytes) -> Iterator[bytes]:
    for _, value in rows.scan(prefix, bytes((prefix[0] + 1,))):
        yield value


def _topic_key(name: str) -> bytes:
    return b"t" + name.encode()


def _number_key(prefix: bytes, number: int) -> bytes:
    return prefix + number.to_bytes(_NUMBER_BYTES, "big")


def _transaction_key(name: str) -> bytes:
    return b"x" + name.encode()


def _hashes_key(first: int) -> bytes:
    return bytes((ord("z"), first))
