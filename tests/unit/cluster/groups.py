"""A machine at the level of groups, spoken to in short; every entry is checked, also what it changed of owners."""

from __future__ import annotations

from typing import Any

from lanner import features
from lanner.cluster import (
    Admitted,
    Altered,
    Assigned,
    Change,
    Expired,
    Forced,
    Forgotten,
    Group,
    GroupsChanged,
    Joined,
    Left,
    Moves,
    Released,
    encode_alter_topic,
    encode_change_groups,
    encode_delete_topic,
)
from lanner.cluster.assignors import ASSIGNORS
from lanner.model import GroupKind
from tests.unit.cluster.world import World

STREAM, QUEUE = GroupKind.STREAM, GroupKind.QUEUE


class Groups(World):
    def __init__(self, *names: str, level: int = features.GROUPS, racks: str = "") -> None:
        super().__init__(*(names or ("a", "b", "c")), racks=racks, level=level)
        self.now_ms = 1_000
        self._before: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._generations: dict[int, tuple[int, int]] = {}

    # ------------------------------------------------------------------ changes

    def change(self, *changes: Change) -> Any:
        """One command; its result, when it holds one change."""
        self.now_ms += 10
        result = self.apply(encode_change_groups(changes, self.now_ms))
        assert isinstance(result, GroupsChanged)
        self.check_grants()
        return result.results[0] if len(changes) == 1 else result.results

    def join_group(self, member: str, group: str = "g", *, kind: GroupKind = STREAM, **more: Any) -> Any:
        if not more.get("topics") and not more.get("patterns"):
            more["topics"] = ("orders",)
        return self.change(Joined(group, kind, member, **more))

    def leave(self, member: str, group: str = "g") -> Any:
        return self.change(Left(group, member))

    def expire(self, member: str, group: str = "g") -> Any:
        return self.change(Expired(self.group(group).row.number, self.number(member, group), 10_000))

    def assign(self, group: str = "g") -> Any:
        """What a coordinator would propose now; None: nothing is to move."""
        found = self.group(group)
        change = assignment(self, found)
        return None if change is None else self.change(change)

    def release(self, member: str, partition: int, group: str = "g", topic: str = "orders", grant: int = -1) -> Any:
        found, partition_id = self.group(group), (self.incarnation(topic), partition)
        present = found.owner_of(partition_id)[1] if grant < 0 else grant
        return self.change(Released(found.row.number, member, partition_id[0], partition, present))

    def force(self, partition: int, grant: int = -1, group: str = "g", topic: str = "orders") -> Any:
        found, partition_id = self.group(group), (self.incarnation(topic), partition)
        present = found.owner_of(partition_id)[1] if grant < 0 else grant
        return self.change(Forced(found.row.number, partition_id[0], partition, present))

    def alter(self, group: str = "g", **changes: Any) -> Any:
        return self.change(Altered(group, **changes))

    def forget(self, group: str = "g") -> Any:
        row = self.group(group).row
        return self.change(Forgotten(row.number, row.generation))

    def grow(self, count: int, topic: str = "orders") -> Any:
        result = self.apply(encode_alter_topic(topic, {"partitions": count}))
        self.check_grants()
        return result

    def delete(self, topic: str = "orders") -> Any:
        result = self.apply(encode_delete_topic(topic))
        self.check_grants()
        return result

    def bring_to_rest(self, group: str = "g") -> None:
        """Assign, and let owners give up what others are to have, until nothing is left to do."""
        for _ in range(10):
            moved = self.assign(group)
            found = self.group(group)
            waiting = [
                (found.members[found.owner_of(partition_id)[0]].member, partition_id, found.owner_of(partition_id)[1])
                for partition_ids in found.inherited.values()
                for partition_id in partition_ids
            ]
            for member, partition_id, grant in sorted(waiting):
                self.change(Released(found.row.number, member, partition_id[0], partition_id[1], grant))
            if moved is None and not waiting:
                return
        raise AssertionError("the group does not come to rest")

    # ------------------------------------------------------------------ questions

    def group(self, name: str = "g") -> Group:
        found = self.machine.group(name)
        assert found is not None
        return found

    def number(self, member: str, group: str = "g") -> int:
        return self.group(group).ids[member]

    def incarnation(self, topic: str = "orders") -> int:
        found: int = self.machine.topics[topic].incarnation
        return found

    def owners(self, group: str = "g", topic: str = "orders") -> list[str]:
        """By partition, as `owner` or `owner>heir`."""
        found = self.group(group)
        names = {0: "-"} | {number: one.member for number, one in found.members.items()}
        row = found.owners[self.incarnation(topic)]
        pairs = zip(row.owners, row.heirs, strict=True)
        return [names[owner] + (f">{names[heir]}" if heir else "") for owner, heir in pairs]

    def grants(self, group: str = "g", topic: str = "orders") -> list[int]:
        return list(self.group(group).owners[self.incarnation(topic)].grants)

    def view(self, member: str, group: str = "g") -> Any:
        found = self.group(group)
        return self.machine.member_view(found, self.machine.find_member(group, member))

    # ------------------------------------------------------------------ what may never happen

    def check_grants(self) -> None:
        """A grant changes only with its owner, and generations only rise."""
        now: dict[tuple[int, int, int], tuple[int, int]] = {}
        for number, found in self.machine.groups().items():
            row = found.row
            before = self._generations.get(number, (0, 0))
            assert (row.generation, row.version) >= before and row.version >= before[1]
            self._generations[number] = row.generation, row.version
            for incarnation, owners in found.owners.items():
                for partition, (owner, grant) in enumerate(zip(owners.owners, owners.grants, strict=True)):
                    now[number, incarnation, partition] = owner, grant
                    was = self._before.get((number, incarnation, partition), (0, 0))
                    assert (owner == was[0]) == (grant == was[1]) or not owner, "a grant changed under its owner"
                    assert owner == was[0] or not owner or grant > before[0], "a grant of the past"
        self._before = now


def assignment(world: World, group: Group) -> Assigned | None:
    question = world.machine.question_of(group)
    answer = ASSIGNORS[group.row.assignor](question)
    moves: dict[int, list[tuple[int, int]]] = {}
    for (topic, partition), member in sorted(answer.items()):
        if question.present.get((topic, partition)) != member:
            moves.setdefault(topic, []).append((partition, member))
    if not moves:
        return None
    columns = tuple(Moves(topic, *map(tuple, zip(*found, strict=True))) for topic, found in moves.items())
    return Assigned(group.row.number, group.row.version, columns)


def admitted(result: Any) -> Admitted:
    assert isinstance(result, Admitted), result
    return result
