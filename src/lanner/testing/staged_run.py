"""Staged publish in one simulation: its writers, its judge, and what is read of its topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import Cluster, Topic
from lanner.model import TopicSettings
from lanner.partition import BatchRef, DropStages, Partition, StageNote, encode_append, encode_stage
from lanner.testing.queue_model import Violation
from lanner.testing.sim_broker import SimBroker
from lanner.testing.staged_checkers import StagedJudge
from lanner.testing.staged_traffic import StagedPort, StagedTraffic, Told, name_in

Read = Callable[[int, BatchRef], Mapping[int, bytes]]


def staged_settings(rng: Random, **more: Any) -> TopicSettings:
    """Everything stays, so that everything can be judged; what may be staged is little in some runs."""
    bytes_max = rng.choice((1 << 20, 1 << 20, 8_000))
    return TopicSettings(partitions=3, retention_ms=0, staged_bytes_max=bytes_max, **more)


class LocalPort:
    """Writers and one broker."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker

    def change(self, command: bytes, told: Told) -> None:
        self._broker.engine.propose(CLUSTER_SET, command, told)

    def stage(self, set_id: int, note: StageNote, data: bytes, told: Told) -> None:
        propose_stage(self._broker, set_id, note, data, self._broker.now_ms(), told)

    def append(self, set_id: int, data: bytes, told: Told) -> None:
        self._broker.engine.propose(set_id, encode_append(self._broker.now_ms(), data), told)

    def prepare(self, set_id: int, token: int, manifest: list[tuple[int, bytes, int]], told: Told) -> None:
        self._broker.tries.prepare(set_id, token, manifest, lambda answer, _index: told(answer))

    def drop(self, set_id: int, request: DropStages, told: Told) -> None:
        self._broker.engine.ask(set_id, request, lambda answer, _index: told(answer))

    def copy(self) -> Cluster | None:
        return self._broker.engine.cluster

    def now_ms(self) -> int:
        return self._broker.now_ms()


def propose_stage(broker: SimBroker, set_id: int, note: StageNote, data: bytes, now_ms: int, told: Told) -> None:
    """As the desk does."""
    engine = broker.engine
    settings = engine.settings.get(set_id) or TopicSettings()
    engine.replica(set_id).partition.check_stage(note, len(data), settings, engine.feature_level)
    engine.propose(set_id, encode_stage(now_ms, note, data), told)


class StagedRun:
    """One simulation's staged publishes, from the first stage to the judgement."""

    def __init__(self, seed: int, port: StagedPort) -> None:
        self.rng = Random(seed + 1_000_003)  # of its own
        self.judge = StagedJudge()
        self.traffic = StagedTraffic(self.rng, port, self.judge)
        self._read_to: dict[int, int] = {}

    def watch(self, witness: Any) -> None:
        """See what is recorded, wherever it is applied first."""
        witness.on_metadata = self.judge.metadata_entry
        witness.on_decision = self.judge.decided

    def serve(self, topic: Topic) -> None:
        self.traffic.serve(topic.set_ids, topic.incarnation)

    def totals(self) -> Counter[str]:
        totals: Counter[str] = Counter({f"staged_{name}": count for name, count in self.traffic.counts.items()})
        outcomes = Counter(recorded.outcome for recorded in self.judge.tries.values())
        totals["staged_commits"], totals["staged_aborts"] = outcomes["committed"], outcomes["aborted"]
        return totals

    def observe(self, set_id: int, partition: Partition, read: Read, *, everything: bool = False) -> None:
        """Read what is new on a partition, or all of it: each staged message must be that of a recorded commit."""
        offset = 0 if everything else self._read_to.get(set_id, 0)
        while refs := partition.batches_from(offset, 1 << 20):
            for ref in refs:
                name = name_in(next(iter(read(set_id, ref).values())))
                if name is not None:
                    self.judge.seen(set_id, ref.base_offset, name)
            offset = refs[-1].base_offset + refs[-1].count
        self._read_to[set_id] = max(offset, self._read_to.get(set_id, 0))

    def at_rest(self, metadata: Cluster, partitions: list[Partition]) -> bool:
        """No try is open, and nothing is prepared anywhere."""
        return not metadata.tries() and not any(partition.prepared() for partition in partitions)

    def finish(self) -> list[Violation]:
        """Everything has come to rest, and was read once more."""
        return self.judge.finish()
