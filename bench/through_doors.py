"""What comes through each door, beside a server of the same kind that only talks (`doors`); and through a proxy.

Broker and floor are up for the whole part and are called in turns by the same callers, in a process of their own. After
each line the two sides' replies are compared by their size: a floor that says less than the broker would be none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import load
from bench.cluster import ROUNDS, SECONDS, fresh_topic
from bench.doors import FLOORS, HOST, PARTITIONS, Work, call_for
from bench.figures import Figure
from bench.floors import scratch
from bench.processes import run_apart, workers
from lanner.testing.process import BrokerProcess, cpu_seconds_of, free_port
from lanner.testing.proxy_process import ProxyProcess

GOAL = 0.5  # of the floor
POLL_MESSAGES = 500
FILLED = int(500_000 * SECONDS)  # messages: a round of the fastest door drains about as many
GROUPS = 10
CONSUMERS = (1, 4, 16, 64)
SIZES_APART_MAX = 0.15  # offsets, tokens and partitions of the two sides are not equally long

_groups = itertools.count(1)


class Line(NamedTuple):
    """One figure of a door: which call, with how many messages, by how many callers at once."""

    name: str
    door: str
    call: str
    messages: int
    callers: int
    proxied: bool = False  # measured through a proxy too


LINES = (
    Line("gRPC publish, unary, 1 message", "grpc", "publish", 1, 32),
    Line("gRPC publish, unary, 100 messages", "grpc", "publish", 100, 8),
    Line("gRPC publish, stream, 500 messages", "grpc", "stream", 500, 4),
    Line("REST publish, 1 message", "rest", "publish", 1, 32, proxied=True),
    Line("REST publish, 500 messages", "rest", "publish", 500, 8),
    Line("native publish, 500 messages", "native", "publish", 500, 16, proxied=True),
    Line("gRPC poll 500 + ack", "grpc", "consume", POLL_MESSAGES, 4),
    Line("REST poll 500 + ack", "rest", "consume", POLL_MESSAGES, 4),
    Line("native poll 500 + ack", "native", "consume", POLL_MESSAGES, 4),
)


class Server(NamedTuple):
    """A process, and how its doors are reached."""

    pid: int
    addresses: dict[str, str]

    @property
    def native(self) -> str:
        return self.addresses["native"]


@contextmanager
def broker() -> Iterator[Server]:
    """A fresh broker with all doors, on the disk of the working tree."""
    grpc = f"{HOST}:{free_port()}"
    with scratch() as folder, BrokerProcess(Path(folder) / "data", settings={"grpc": grpc}) as process:
        yield Server(process.pid, {"native": process.native, "rest": f"{HOST}:{process.http_port}", "grpc": grpc})


class Rounds:
    """What came of the rounds with one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.bytes_each = 0.0
        self._rates: list[float] = []
        self._costs_us: list[float] = []

    @property
    def rate(self) -> float:
        return median(self._rates)

    @property
    def cost_us(self) -> float:
        """Processor time of the server for one message."""
        return median(self._costs_us)

    def add(self, pool: ProcessPoolExecutor, door: str, works: list[Work]) -> None:
        before = cpu_seconds_of(self.server.pid)
        done = pool.submit(call_for, door, self.server.addresses[door], works, SECONDS).result()
        self._costs_us.append(1e6 * (cpu_seconds_of(self.server.pid) - before) / done.span.count)
        self._rates.append(done.span.rate)
        self.bytes_each = done.bytes_each


def in_turns(door: str, server: Server, other: Server, works: Callable[[], list[Work]]) -> tuple[Rounds, Rounds]:
    """Call two servers in turns."""
    sides = Rounds(server), Rounds(other)
    with workers(1) as pool:
        for _ in range(ROUNDS):
            asked = works()
            for side in sides:
                side.add(pool, door, asked)
            sizes = [side.bytes_each for side in sides]
            if max(sizes) - min(sizes) > SIZES_APART_MAX * max(sizes):
                raise AssertionError(f"replies of {sizes} bytes a message to {asked[0]}: they are not the same")
    return sides


def beside_floor(
    name: str, door: str, server: Server, works: Callable[[], list[Work]], goal: float | None = None
) -> Figure:
    """A figure of a door, and its floor; the goal is a share of that."""
    port = free_port()
    with run_apart(FLOORS[door], port) as pid:
        measured, floor = in_turns(door, server, Server(pid, {door: f"{HOST}:{port}"}), works)
    aim = None if goal is None else goal * floor.rate
    note = f"CPU {measured.cost_us:.2f} µs a message, floor {floor.cost_us:.2f}"
    return Figure(name, measured.rate, "msg/s", aim, floor.rate, "talk only", note)


def consumers_of(topic: str, count: int, groups: int = 1) -> Callable[[], list[Work]]:
    """So many consumers, spread over so many groups, which are new in every round."""

    def works() -> list[Work]:
        names = [f"bench-{next(_groups)}" for _ in range(groups)]
        return [Work("consume", topic, POLL_MESSAGES, names[number % groups]) for number in range(count)]

    return works


def publishers_to(topic: str, line: Line) -> Callable[[], list[Work]]:
    return lambda: [Work(line.call, topic, line.messages)] * line.callers


def filled_topic(address: str) -> str:
    topic = fresh_topic(address, PARTITIONS, replication=1)
    load.fill(address, topic, FILLED, POLL_MESSAGES)
    return topic


# ------------------------------------------------------------------ parts


def measure_doors() -> list[Figure]:
    """Publish, and poll + ack, over each door."""
    figures = []
    with broker() as server:
        filled = filled_topic(server.native)
        for line in LINES:
            if line.call == "consume":
                works = consumers_of(filled, line.callers)
            else:
                topic = fresh_topic(server.native, PARTITIONS, replication=1)
                works = publishers_to(topic, line)
            figures.append(beside_floor(line.name, line.door, server, works, GOAL))
    return figures


def measure_fan_out() -> list[Figure]:
    """The same messages to ten groups, one consumer each, beside ten consumers of one group."""
    with broker() as server:
        topic = filled_topic(server.native)
        many = beside_floor("fan-out to 10 groups, deliveries", "native", server, consumers_of(topic, GROUPS, GROUPS))
        one = beside_floor("… 10 consumers of one group", "native", server, consumers_of(topic, GROUPS))
    return [many, one]


def measure_consumers() -> list[Figure]:
    """One group with 1 to 64 consumers."""
    with broker() as server:
        topic = filled_topic(server.native)
        return [
            beside_floor(f"poll 500 + ack, consumers: {count}", "native", server, consumers_of(topic, count))
            for count in CONSUMERS
        ]


def measure_proxy() -> list[Figure]:
    """Through a proxy, beside the same broker without one."""
    figures = []
    with broker() as server, scratch() as folder, ProxyProcess(folder, server.native) as process:
        proxy = Server(process.pid, {"native": process.native, "rest": f"{HOST}:{process.http_port}"})
        topic = fresh_topic(server.native, PARTITIONS, replication=1)
        for line in LINES:
            if line.proxied:
                through, direct = in_turns(line.door, proxy, server, publishers_to(topic, line))
                name, note = f"{line.name}, through a proxy", f"CPU of the proxy {through.cost_us:.2f} µs a message"
                figures.append(Figure(name, through.rate, "msg/s", None, direct.rate, "direct", note))
    return figures
