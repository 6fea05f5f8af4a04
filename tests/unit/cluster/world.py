"""A metadata machine with the replica sets it speaks of: each step it names is done to a membership, as Raft would.

What the machine believes and what is so may differ by the step that was done and not reported; never by more. And no
replica id ever stands for two replicas, nor comes back once it has gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lanner.cluster import (
    METADATA_SET,
    Action,
    Cluster,
    Registration,
    Step,
    encode_create_topic,
    encode_drain_broker,
    encode_fail_step,
    encode_finish_step,
    encode_found_cluster,
    encode_register_broker,
)
from lanner.model import TopicSettings


class StoredRows:
    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted((key, value) for key, value in self.rows.items() if start <= key < stop)

    def put(self, changed: dict[bytes, bytes | None]) -> None:
        for key, value in changed.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value


def registration(name: str, node_id: str = "", rack: str = "", **features: int) -> Registration:
    return Registration(name, node_id or f"node-{name}", {"native": f"{name}:7400"}, rack, **features)


class World:
    def __init__(self, *names: str, racks: str = "", level: int = 1) -> None:
        self.machine = Cluster(StoredRows())
        self.log: list[bytes | None] = []
        self.stored = StoredRows()
        self.saved = 0
        self.members: dict[int, dict[int, bool]] = {}  # set -> replica -> whether it votes, as the set's own log has it
        self.ever: dict[tuple[int, int], str] = {}
        self.gone: set[tuple[int, int]] = set()
        if names:
            found = [
                registration(name, rack=racks[place] if racks else "", feature_max=level)
                for place, name in enumerate(names)
            ]
            assert self.apply(encode_found_cluster("cluster", found, 1)) == "cluster"

    # ------------------------------------------------------------------ the log

    @property
    def index(self) -> int:
        return len(self.log)

    def apply(self, payload: bytes | None) -> Any:
        self.log.append(payload)
        outcome = self.machine.apply(self.index, payload)
        assert (outcome.live, outcome.released, outcome.deliverable) == (False, (), False)
        self.machine.check()
        self._watch()
        return outcome.result

    def create(self, topic: str, **settings: Any) -> Any:
        return self.apply(encode_create_topic(topic, TopicSettings.from_dict(settings), 1_000))

    def join(self, name: str, node_id: str = "", rack: str = "") -> Any:
        """Register a broker and let it catch up."""
        given = registration(name, node_id, rack, feature_max=self.machine.feature_level)
        result = self.apply(encode_register_broker(given, 2))
        self.settle()
        return result

    def drain(self, name: str) -> Any:
        return self.apply(encode_drain_broker(f"node-{name}", 3))

    def save(self) -> None:
        self.stored.put(self.machine.take_dirty())
        self.saved = self.index

    def restart(self) -> None:
        """The saved rows and the log's tail make the same machine, byte for byte."""
        again = Cluster(self.stored)
        assert again.applied_index == self.saved
        for index, payload in enumerate(self.log[self.saved :], start=self.saved + 1):
            again.apply(index, payload)
        again.check()
        assert again.all_rows() == self.machine.all_rows()
        assert again.next_steps() == self.machine.next_steps()
        self.machine = again

    # ------------------------------------------------------------------ what the machine may never do

    def _watch(self) -> None:
        sets = self.machine.sets
        for set_id, one in sets.items():
            if set_id not in self.members:
                founders = range(1, one.founders + 1) if set_id else [replica.replica_id for replica in one.replicas]
                self.members[set_id] = {number: number <= one.founders for number in founders}
            now = {(set_id, replica.replica_id): replica.node_id for replica in one.replicas}
            for key, node_id in now.items():
                assert key not in self.gone, f"replica {key} came back from the dead"
                assert self.ever.setdefault(key, node_id) == node_id, f"replica {key} moved under its own name"
            self.gone.update(key for key in self.ever if key[0] == set_id and key not in now)
        for set_id in [set_id for set_id in self.members if set_id not in sets]:
            del self.members[set_id]
        self._compare()

    def _compare(self) -> None:
        """What is believed and what is so differ at most by the step that is to be done now."""
        pending = {step.set_id: step.replica_id for step in self.machine.next_steps()}
        for set_id, one in self.machine.sets.items():
            believed = {replica.replica_id: replica.voter for replica in one.replicas}
            so = self.members[set_id]
            assert any(so.values()), f"nobody votes in set {set_id}"
            differing = {number for number in believed.keys() | so.keys() if believed.get(number) != so.get(number)}
            assert differing <= {pending.get(set_id, 0)}, f"set {set_id}: {believed} is believed, {so} is so"

    # ------------------------------------------------------------------ steps

    def do(self, step: Step) -> None:
        """What the leader of the set would do; doing it twice does no harm."""
        members, number = self.members[step.set_id], step.replica_id
        match step.action:
            case Action.ADD_LEARNER:
                members.setdefault(number, False)
            case Action.CATCH_UP:
                assert number in members, "what should catch up was added before"
            case Action.PROMOTE | Action.BACK_PROMOTE:
                assert number in members, "what should vote was added before"
                members[number] = True
            case Action.HAND_OVER | Action.BACK_HAND_OVER:
                assert step.successor != number and members[step.successor], "a voter takes over"
            case Action.DEMOTE | Action.BACK_DEMOTE:
                members[number] = False
            case _:
                members.pop(number, None)
        assert any(members.values()), "somebody votes"

    def report(self, step: Step) -> Any:
        return self.apply(encode_finish_step(step.move_id, step.position, step.action))

    def fail(self, step: Step, reason: str = "it is down") -> Any:
        return self.apply(encode_fail_step(step.move_id, step.position, step.action, reason))

    def advance(self) -> bool:
        """One round: everything that is to be done now is done and reported; whether there was anything."""
        steps = self.machine.next_steps()
        for step in steps:
            self.do(step)
            self.report(step)
        return bool(steps)

    def settle(self, rounds_max: int = 2_000) -> int:
        """Rounds until nothing is left to do; then what is believed is so."""
        for rounds in range(rounds_max):
            if not self.advance():
                for set_id, one in self.machine.sets.items():
                    assert {replica.replica_id: replica.voter for replica in one.replicas} == self.members[set_id]
                assert not self.machine.moves, "what does not run waits for nothing"
                return rounds
        raise AssertionError("the plans never come to an end")

    # ------------------------------------------------------------------ what tests ask

    def held(self) -> dict[str, int]:
        """How many partitions' replicas each broker has."""
        return {row.name: row.replicas for row in self.machine.describe_brokers()}

    def led(self) -> dict[str, int]:
        return {row.name: row.should_lead for row in self.machine.describe_brokers()}

    def nodes(self, set_id: int) -> set[str]:
        return {node_id.removeprefix("node-") for node_id in self.machine.sets[set_id].nodes}

    def votes(self) -> set[str]:
        voters = self.machine.sets[METADATA_SET].voters
        return {voter.node_id.removeprefix("node-") for voter in voters}
