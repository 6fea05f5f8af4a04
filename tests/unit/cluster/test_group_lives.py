"""Random lives of groups: members come, go, take over and fall silent, topics come and go, machines restart."""

from __future__ import annotations

import random

import pytest

from lanner.cluster.assignors import ASSIGNORS
from tests.unit.cluster.groups import QUEUE, STREAM, Groups

ACTS = (
    *["join"] * 5,
    *["join_static"] * 2,
    *["leave"] * 2,
    "expire",
    *["assign"] * 6,
    *["release"] * 6,
    *["force"] * 2,
    "alter",
    "touch",
    "forget",
    "create",
    "grow",
    "delete",
    "save",
    "restart",
)


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = Groups()
        self.kind = self.rng.choice((STREAM, QUEUE))
        self.joins = 0
        self.world.create("orders", partitions=3)
        self.world.save()

    def act(self) -> None:
        name = self.rng.choice(ACTS)
        if (
            name.startswith("join")
            or name in ("create", "grow", "delete", "save", "restart")
            or self.world.machine.group("g") is not None
        ):
            getattr(self, name)()

    def member(self) -> str:
        return self.rng.choice([*self.world.group().ids, "stranger"])

    def join(self, instance: str = "") -> None:
        self.joins += 1
        topics = self.rng.choice((("orders",), ("orders", "payments"), ("payments",)))
        patterns = self.rng.choice(((), (), ("*s",)))
        assignor = self.rng.choice(("", "", "sticky"))
        self.world.join_group(
            f"m{self.joins}", kind=self.kind, topics=topics, patterns=patterns, assignor=assignor, instance=instance
        )

    def join_static(self) -> None:
        self.join(self.rng.choice(("web-1", "web-2")))

    def leave(self) -> None:
        self.world.leave(self.member())

    def expire(self) -> None:
        if self.world.group().ids:
            self.world.expire(self.rng.choice(list(self.world.group().ids)))

    def assign(self) -> None:
        self.world.assign()

    def release(self) -> None:
        self._hand_over(lambda partition, topic: self.world.release(self.member(), partition, topic=topic))

    def force(self) -> None:
        self._hand_over(lambda partition, topic: self.world.force(partition, topic=topic))

    def _hand_over(self, act: object) -> None:
        topics = list(self.world.machine.topics)
        if topics:
            assert callable(act)
            act(self.rng.randrange(4), self.rng.choice(topics))

    def alter(self) -> None:
        self.world.alter(assignor=self.rng.choice(sorted(ASSIGNORS)))

    def touch(self) -> None:
        self.world.alter()

    def forget(self) -> None:
        self.world.forget()

    def create(self) -> None:
        self.world.create(self.rng.choice(("orders", "payments")), partitions=self.rng.randint(1, 3))

    def grow(self) -> None:
        self.world.grow(self.rng.randint(1, 5), self.rng.choice(("orders", "payments")))

    def delete(self) -> None:
        self.world.delete(self.rng.choice(("orders", "payments")))

    def save(self) -> None:
        self.world.save()

    def restart(self) -> None:
        self.world.restart()

    def check_rest(self) -> None:
        """Once everybody does what is to be done, each wanted partition has one owner, and nobody is to follow."""
        if self.world.machine.group("g") is None:
            return
        self.world.bring_to_rest()
        group = self.world.group()
        assert not group.handing_over
        for incarnation in group.topics():
            owners = group.owners[incarnation].owners
            assert all(owners) is not group.shared, "each has an owner, unless it is shared"


@pytest.mark.parametrize("first_seed", range(0, 60, 10))
def test_a_life_keeps_every_invariant_and_comes_to_rest(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        life = Life(seed)
        for _ in range(80):
            life.act()
        life.check_rest()
        life.world.save()
        life.world.restart()
