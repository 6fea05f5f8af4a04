"""One broker, one seed: clients, faults and time in an order that the seed alone decides.

A simulation serves a few partitions with different rules, lets clients and faults loose on them for some thousands of
events, then takes the faults away, drains every group, pulls the plug once more, reads everything back and has the
history judged. The same seed gives the same run, event by event; so a failing seed is a bug report.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final

from lanner import features
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import encode_create_topic, encode_raise_feature_level
from lanner.errors import StorageDamaged, StorageFailed
from lanner.ledger import Ledger
from lanner.ledger.rows import set_of_key
from lanner.model import Retention, TopicSettings
from lanner.partition import BatchRef
from lanner.testing.checkers import judge
from lanner.testing.clock import SimClock
from lanner.testing.decay import decay_batch
from lanner.testing.disk import PowerLost
from lanner.testing.flips import flip_record, holds_record
from lanner.testing.history import Ended, History, Rules, Stored
from lanner.testing.operators import OperatedTraffic
from lanner.testing.queue_model import Violation
from lanner.testing.sim_broker import Broken, SimBroker
from lanner.testing.staged_run import LocalPort, StagedRun, staged_settings
from lanner.testing.staged_traffic import TOPIC as STAGED_TOPIC
from lanner.testing.staged_traffic import takes_part
from lanner.testing.traffic import AUTO_GROUP, QUEUE_GROUPS, STREAM_GROUP, name_of

EVENTS: Final = 5_000
_DRAIN_ROUNDS_MAX: Final = 1_000
_DRAIN_ROUND_MS: Final = 100
_LONGEST_WAIT_MS: Final = 5_000

REPEATED: Final = ("repeated_settles", "repeated_commits", "repeated_creates")
TOTALS: Final = (
    "crashes",
    "torn_tails",
    "last_record_refusals",
    "expiries",
    "retries",
    "dead",
    "trims",
    "rewritten_segments",
    "row_refusals",
    "rotten_entries",
    "cut_replies",
    *REPEATED,
    "staged_commits",
    "staged_aborts",
    "staged_repeated",
    "staged_fenced",
)


@dataclass(slots=True)
class Report:
    """What became of one seed."""

    seed: int
    events: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    history: History = field(default_factory=History)

    @property
    def failed(self) -> bool:
        return bool(self.violations)


def simulate(seed: int, events: int = EVENTS) -> Report:
    """Run one seed to its end, or to the first rule that the broker itself is seen to break."""
    simulation = Simulation(seed, events)
    report = Report(seed, history=simulation.history)
    run_and_judge(report, simulation.run, simulation.traffic.give_up)
    if simulation.staged is not None:
        report.violations += simulation.staged.judge.violations
    report.events = simulation.events
    report.totals = simulation.totals()
    return report


def run_and_judge(report: Report, run: Callable[[], None], give_up: Callable[[], None]) -> None:
    """Run to the end, or to the first rule that is seen to be broken, and judge what clients were told until then."""
    try:
        run()
        report.violations = judge(report.history)
    except Broken as broken:
        give_up()
        report.violations = [broken.violation, *judge(report.history)]
    except StorageDamaged as error:
        report.violations = [Violation("broker refuses its own disk", CLUSTER_SET, error.message)]
    except AssertionError as error:
        report.violations = [Violation("invariant broken", CLUSTER_SET, f"{error} ({place_of(error)})")]
    except Exception as error:  # whatever comes out of a broker by itself is a broken rule too
        text = f"{type(error).__name__}: {error} ({place_of(error)})"
        report.violations = [Violation("broker broke down", CLUSTER_SET, text)]


def place_of(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(where.filename).name}:{where.lineno}"


class Simulation:
    """One run."""

    def __init__(self, seed: int, events: int = EVENTS) -> None:
        self.rng = Random(seed)
        self.clock = SimClock()
        self.history = History()
        self.broker = SimBroker(self.rng, self.clock)
        self.traffic = OperatedTraffic(self.rng, self.broker, self.clock, self.history)
        self.events = 0
        self._events_wanted = events
        self._slow = 0  # so many more turns the disk hardly gets on
        self._flips = Random(seed)  # of its own: what is tried on copies leaves the run as it is
        self._steps = self._weigh_steps()
        self.staged: StagedRun | None = None
        if takes_part(seed):
            self._let_writers_stage(seed)

    def _let_writers_stage(self, seed: int) -> None:
        self.staged = StagedRun(seed, LocalPort(self.broker))
        self.staged.watch(self.broker.witness)
        names, weights = self._steps
        self._steps = (*names, "stage", "tend", "observe"), (*weights, *accumulate((weights[-1] + 25.0, 15.0, 1.0)))

    def totals(self) -> Counter[str]:
        facts, counts = self.broker.witness.facts, self.broker.counts
        totals = Counter({name: counts[name] for name in ("crashes", "torn_tails", "rewritten_segments", "saves")})
        totals["expiries"] = facts["LeaseEnded"]
        totals["retries"] = self.traffic.counts["retries"]
        totals["dead"] = facts["Died"]
        totals["trims"] = facts["Trimmed"]
        totals["events"] = self.events
        for name in ("published", "handed", "unknown", "duplicates", "cut_replies", "damaged", *REPEATED):
            totals[name] = self.traffic.counts[name]
        for name in ("refusals", "failed_syncs", "last_record_refusals", "row_refusals", "rotten_entries"):
            totals[name] = counts[name]
        if self.staged is not None:
            totals.update(self.staged.totals())
        return totals

    # ------------------------------------------------------------------ the run

    def run(self) -> None:
        self.broker.start()
        self._make_topics()
        while self.events < self._events_wanted:
            try:
                self._turn()
            except PowerLost:
                self._restart()
            except StorageFailed:  # the process ends; what it had written may still be in the system's cache
                self.broker.counts["failed_syncs"] += 1
                self._restart(power=self.rng.random() < 0.5)
        self._drain()
        if self.staged is not None:
            self._rest_staged(self.staged)
        self._restart()
        self._read_everything()
        if self.staged is not None:
            self._observe(self.staged, everything=True)
            self.staged.finish()

    def _make_topics(self) -> None:
        rng = self.rng
        self.broker.engine.propose(CLUSTER_SET, encode_raise_feature_level(features.HIGHEST), lambda _result: None)
        self._settle_down()
        for number in range(2):
            bytes_max = rng.choice((0, 40_000))
            settings = TopicSettings(
                partitions=2 - number,
                lease_ms=rng.choice((150, 400, 1_000)),
                max_deliveries=rng.choice((2, 3, 5)),
                backoff_ms=rng.choice((0, 20, 100)),
                backoff_max_ms=500,
                outstanding_max=rng.choice((10_000, 10_000, 40)),
                retention=Retention.TIME if number else Retention.ACKED,
                retention_ms=0 if bytes_max else 8_000,
                retention_bytes=bytes_max if number else 0,
            )
            command = encode_create_topic(f"topic-{number}", settings, self.clock.now_ms())
            self.broker.engine.propose(CLUSTER_SET, command, lambda _result: self.broker.reconcile())
            self._settle_down()
        self._settle_down()
        for topic in self.broker.engine.cluster.topics.values():
            for set_id in topic.set_ids:
                self.traffic.serve(set_id, topic.name, topic.settings)
                self.history.rules[set_id] = rules_of(topic.settings)
        self.traffic.open_producers(4)
        if self.staged is not None:
            command = encode_create_topic(STAGED_TOPIC, staged_settings(self.staged.rng), self.clock.now_ms())
            self.broker.engine.propose(CLUSTER_SET, command, lambda _result: self.broker.reconcile())
            self._settle_down()
            self.staged.serve(self.broker.engine.cluster.topics[STAGED_TOPIC])

    def _weigh_steps(self) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """How often what happens differs from seed to seed, so that each finds its own trouble."""
        rng = self.rng
        weights = {
            "commit": 30.0,
            "publish": rng.choice((8.0, 12.0, 18.0)),
            "poll": 10.0,
            "settle": rng.choice((12.0, 20.0)),
            "read": 1.0,
            "inspect": 0.3,
            "administer": 0.4,
            "save": rng.choice((1.0, 4.0)),
            "rewrite": 3.0,
            "prepare": 1.0,
            "tick": 4.0,
            "jump": 0.1,
            "rot": rng.choice((0.0, 0.03)),
            "fault": rng.choice((0.05, 0.15)),
        }
        return tuple(weights), tuple(accumulate(weights.values()))

    def _turn(self) -> None:
        rng = self.rng
        self.clock.advance(rng.choice((0, 0, 0, 1, 1, 2, 6)))
        names, weights = self._steps
        step = rng.choices(names, cum_weights=weights)[0]
        if step == "tick":
            self.broker.engine.tick()
            self.broker.tries.tick()
            return
        if self.staged is not None and step in ("stage", "tend", "observe"):
            self.events += self._staged_step(self.staged, step)
            return
        if step == "commit":
            if self._slow > 0:
                self._slow -= 1
                return
            happened = self.broker.step_commit()
        elif step in ("save", "rewrite", "prepare"):
            happened = self.broker.step_work(step)
        else:
            happened = self._client_or_fault(step)
        self.events += happened

    def _client_or_fault(self, step: str) -> bool:
        rng, traffic = self.rng, self.traffic
        if step == "publish":
            traffic.publish()
        elif step == "poll":
            return traffic.poll(rng.choice(traffic.consumers))
        elif step == "settle":
            consumer = rng.choice(traffic.consumers)
            if not consumer.held:
                return False
            traffic.settle(consumer)
        elif step == "read":
            traffic.read()
        elif step == "inspect":
            traffic.inspect()
        elif step == "administer":
            traffic.administer()
        elif step == "jump":
            self.clock.jump(rng.choice((-3_000, -200, 200, 3_000)))
        elif step == "rot":
            rotten = decay_batch(self.broker, rng.choice(list(traffic.settings)), rng)
            self.broker.counts["rotten_entries"] += rotten
            return rotten
        else:
            self._fault()
        return True

    def _staged_step(self, staged: StagedRun, step: str) -> bool:
        if step == "stage":
            return staged.traffic.act()
        if step == "tend":
            self.broker.tend()
        else:
            self._observe(staged)
        return False

    def _observe(self, staged: StagedRun, *, everything: bool = False) -> None:
        for set_id in staged.traffic.set_ids:
            staged.observe(set_id, self.traffic.partition(set_id), self.broker.read, everything=everything)

    # ------------------------------------------------------------------ faults

    def _fault(self) -> None:
        rng, disk = self.rng, self.broker.disk
        fault = rng.choices(
            ("plug", "now", "kill", "slow", "full", "table", "sync"), weights=(35, 25, 10, 18, 6, 4, 4)
        )[0]
        if fault == "plug":
            disk.crash_in(rng.randint(1, 12))
        elif fault == "now":
            self.broker.write_without_sync()
            raise PowerLost
        elif fault == "kill":
            if rng.random() < 0.5:
                self.broker.write_without_sync()
            self._restart(power=False)
        elif fault == "slow":
            self._slow = rng.randint(20, 200)
        elif fault == "full":
            disk.write_room_bytes = rng.randrange(2_000)
        elif fault == "table":
            disk.table_full = True
        else:
            disk.sync_failures = 1

    def _restart(self, power: bool = True) -> None:
        """Start again from the disk, as often as the power goes again meanwhile."""
        broker = self.broker
        while True:
            self.traffic.crashed()
            if self.staged is not None:
                self.staged.traffic.crashed()
            self._end_faults()
            if power:
                broker.crash()
            else:
                broker.kill()
            self._check_refusal(broker.durable_records())
            self._check_row_refusal()
            if self.rng.random() < 0.1:
                broker.disk.crash_in(self.rng.randint(1, 60))
            try:
                broker.start()
            except (PowerLost, StorageFailed):
                power = True
                continue
            broker.disk.crash_in(None)
            self.events += 1
            return

    def _end_faults(self) -> None:
        disk = self.broker.disk
        disk.crash_in(None)
        disk.sync_failures, disk.write_room_bytes, disk.table_full = 0, None, False
        self._slow = 0

    def _check_refusal(self, records: list[tuple[int, int, int]]) -> None:
        """Damage to a record that was durable must be refused, and never be cut: tried on a copy.

        Most often to the last one, which no later record proves.
        """
        rng = self._flips
        if not records:
            return
        last = rng.random() < 0.7
        record = records[-1] if last else rng.choice(records)
        copy = self.broker.disk.snapshot()
        if not holds_record(copy, record):
            return  # it is lost already, and the start will show it
        flip_record(copy, record, rng)
        try:
            Ledger.recover(copy.files, copy.table, random_bytes=rng.randbytes)
        except StorageDamaged:
            self.broker.counts["last_record_refusals" if record == records[-1] else "refusals"] += 1
        else:
            raise Broken("damage accepted", CLUSTER_SET, f"a bit of the record at {record[0]}:{record[1]} was flipped")

    def _check_row_refusal(self) -> None:
        """One flipped bit of any row, in its key or its value, must be found: tried on a copy."""
        rng = self.rng
        keys = self.broker.disk.row_keys()
        if not keys:
            return
        copy, key = self.broker.disk.snapshot(), rng.choice(keys)
        copy.flip_row_bit(key, rng.randrange(copy.row_bits(key)))
        try:
            Ledger.recover(copy.files, copy.table, random_bytes=rng.randbytes)
        except StorageDamaged:
            self.broker.counts["row_refusals"] += 1
        else:
            raise Broken("damage accepted", set_of_key(key) or CLUSTER_SET, f"a bit of the row {key.hex()} was flipped")

    # ------------------------------------------------------------------ the end

    def _settle_down(self) -> None:
        """Let everything that was asked for be answered."""
        while self.broker.step_commit() or self.broker.busy or not self.broker.engine.led:
            pass

    def _drain(self) -> None:
        """Without faults: every group must get everything, in the end."""
        self._end_faults()
        self._settle_down()
        for consumer in self.traffic.consumers:
            consumer.held.clear()
        for _ in range(_DRAIN_ROUNDS_MAX):
            before = self.traffic.counts["handed"]
            for consumer in self.traffic.consumers:
                self.traffic.poll(consumer, max_messages=500)
            self._settle_down()
            for consumer in self.traffic.consumers:
                while consumer.held:
                    self.traffic.settle(consumer, "ack")
            self._settle_down()
            self.broker.finish_work()
            self.clock.advance(_DRAIN_ROUND_MS)
            self.broker.engine.tick()
            if self.traffic.counts["handed"] == before:
                if self._at_rest():
                    return
                self.clock.advance(_LONGEST_WAIT_MS)
                self.broker.engine.tick()
                self._settle_down()
        raise Broken("group never comes to rest", CLUSTER_SET, f"after {_DRAIN_ROUNDS_MAX} rounds without faults")

    def _rest_staged(self, staged: StagedRun) -> None:
        """Without faults, and without help of a client: every try must end, and every partition act on its outcome."""
        for _ in range(_DRAIN_ROUNDS_MAX):
            partitions = [self.traffic.partition(set_id) for set_id in staged.traffic.set_ids]
            if staged.at_rest(self.broker.engine.cluster, partitions):
                return
            self.clock.advance(_DRAIN_ROUND_MS)
            self.broker.engine.tick()
            self.broker.tries.tick()
            self.broker.tend()
            self._settle_down()
        raise Broken("try never ends", CLUSTER_SET, f"after {_DRAIN_ROUNDS_MAX} rounds without faults")

    def _at_rest(self) -> bool:
        now_ms = self.broker.now_ms()
        for set_id in self.traffic.settings:
            partition = self.traffic.partition(set_id)
            if len(partition._state.delayed):
                return False
            for group in (*QUEUE_GROUPS, AUTO_GROUP):
                if group in partition.groups():
                    state = partition.describe_group(group, now_ms)
                    if state.lag or state.ready or state.leased or state.waiting:
                        return False
        return True

    def _read_or_recall(self, set_id: int, ref: BatchRef) -> Mapping[int, bytes]:
        """What was in a batch that has rotted is gone, and nothing else."""
        try:
            return self.broker.read(set_id, ref)
        except StorageDamaged:
            return self.broker.remembered[set_id, ref.index]

    def _read_everything(self) -> None:
        for set_id in self.traffic.settings:
            partition = self.traffic.partition(set_id)
            partition.check()
            called = self.traffic.now()
            stored: dict[int, Stored] = {}
            offset = partition.first_offset
            while refs := partition.batches_from(offset, 1 << 20):
                for ref in refs:
                    for at, value in self._read_or_recall(set_id, ref).items():
                        stored[at] = Stored(at, name_of(value), ref.lane)
                    offset = ref.base_offset + ref.count
            groups = [group for group in QUEUE_GROUPS if group in partition.groups()]
            dead: list[tuple[str, int]] = []
            for group in groups:
                for letter in self.traffic.see_dead(set_id, group, limit=100_000):
                    dead.append((group, letter.offset))
                    stored[letter.offset] = letter
            self.history.add(
                Ended(
                    called,
                    self.traffic.now(),
                    set_id,
                    partition.first_offset,
                    partition.end_offset,
                    tuple(stored[at] for at in sorted(stored)),
                    partition.machine_ms,
                    tuple(groups),
                    tuple(dead),
                )
            )


def rules_of(settings: TopicSettings) -> Rules:
    return Rules(
        max_deliveries=settings.max_deliveries,
        retention=str(settings.retention),
        retention_ms=settings.retention_ms if settings.retention is Retention.TIME else 0,
        retention_bytes=settings.retention_bytes,
    )


__all__ = ["EVENTS", "STREAM_GROUP", "TOTALS", "Report", "Simulation", "simulate"]
