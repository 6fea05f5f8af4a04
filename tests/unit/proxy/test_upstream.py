"""How a proxy asks brokers: once where it must, elsewhere where it may, and on connections of their own what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from lanner.calls import ANONYMOUS
from lanner.client.session import Callback
from lanner.errors import (
    BadGateway,
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    NotLeader,
    ServiceUnavailable,
    StaleIncarnation,
    TopicNotFound,
    ValidationError,
)
from lanner.proxy.topology import Topology
from lanner.proxy.upstream import ManyBrokers, Upstream
from lanner.wire.administration import (
    CountReply,
    CreateTopic,
    DeleteTopic,
    ListTopics,
    RedriveDead,
    TopicDescription,
    TopicNames,
)
from lanner.wire.connection import Reply
from lanner.wire.members import Heartbeat, MemberView
from lanner.wire.messages import Command, Control, Empty, Fetch, Fetched, FetchedBatch

Outcome = LannerError | Control


class Session:
    """One broker that says what the test wants it to."""

    def __init__(self, node_id: str, *outcomes: Outcome) -> None:
        self.node_id = node_id
        self.is_up, self.is_suspect, self.is_failing = True, False, False
        self.outcomes = list(outcomes)
        self.asked: list[Command] = []
        self.owed: list[Callback] = []
        self.timeouts_ms: list[float] = []
        self.bulk = memoryview(b"")

    def call(self, command: Command, control: Control, bulk: Any, callback: Callback, timeout_ms: float) -> None:
        self.asked.append(command)
        self.timeouts_ms.append(timeout_ms)
        if not self.outcomes:
            self.owed.append(callback)
            return
        outcome = self.outcomes.pop(0)
        callback(outcome if isinstance(outcome, LannerError) else Reply(command, 1, outcome, self.bulk))

    async def wait_until_tried(self, deadline: float) -> None: ...


class Pool:
    """Connections to these brokers; the first that is not to be avoided is reached."""

    def __init__(self, *sessions: Session) -> None:
        self.sessions = {session.node_id: session for session in sessions}
        self.waiting: list[Pool] = []

    def to(self, node_id: str) -> Session | None:
        return self.sessions.get(node_id)

    async def reached(self, deadline: float, avoid: Any = ()) -> Session:
        sessions = list(self.sessions.values())
        found = [one for one in sessions if one.is_up and one not in avoid] or [one for one in sessions if one.is_up]
        if not found:
            raise ConnectionLost("nobody is there", sent=False)
        return found[0]


class Map:
    def __init__(self) -> None:
        self.doubted: list[str] = []
        self.failures: list[tuple[str, int]] = []

    def doubt(self, name: str) -> bool:
        self.doubted.append(name)
        return True

    def failed(self, topic: str, partition: int, asked: Any, error: LannerError) -> bool:
        self.failures.append((topic, partition))
        return False

    def name_of(self, node_id: str) -> str:
        return f"broker-{node_id}"


def upstream_of(pool: Pool, waiting: Pool | None = None) -> tuple[Upstream, Map]:
    pool.waiting = [waiting or Pool(*pool.sessions.values())]
    places = Map()
    return Upstream(cast(ManyBrokers, pool), cast(Topology, places)), places


NAMES = TopicNames(["a"])
LOST = ConnectionLost("gone")
UNSENT = ConnectionLost("never left", sent=False)


async def test_what_reads_is_asked_of_the_next_broker_when_one_does_not_answer() -> None:
    first, second = Session("1", LOST), Session("2", NAMES)
    upstream, _ = upstream_of(Pool(first, second))
    assert (await upstream.ask_any(ListTopics())).control is NAMES
    assert (len(first.asked), len(second.asked), upstream.repeated) == (1, 1, 1)


async def test_it_stays_with_the_broker_that_answered_also_for_what_waits() -> None:
    view = MemberView(1, 1, 1, 10_000, [], [])
    first, second = Session("1", LOST), Session("2", NAMES, NAMES)
    waiting = Pool(Session("1", view), Session("2", view))
    upstream, _ = upstream_of(Pool(first, second), waiting)
    for _ in range(2):
        await upstream.ask_any(ListTopics())
    assert second.asked == [Command.LIST_TOPICS] * 2
    await upstream.ask_any(Heartbeat("g", "m" * 16, 1, 1, wait_ms=100))
    assert [one.asked for one in waiting.sessions.values()] == [[], [Command.HEARTBEAT]]


@pytest.mark.parametrize(("lost", "again"), [(LOST, False), (UNSENT, True), (NotLeader(refused=True), True)])
async def test_what_would_take_effect_twice_is_asked_again_only_if_it_surely_had_none(
    lost: LannerError, again: bool
) -> None:
    first, second = Session("1", lost), Session("2", Empty())
    upstream, _ = upstream_of(Pool(first, second))
    if again:
        assert (await upstream.ask_any(DeleteTopic("orders"))).control == Empty()
    else:
        with pytest.raises(BadGateway, match="broker-1 did not answer") as caught:
            await upstream.ask_any(DeleteTopic("orders"))
        assert "refused" not in caught.value.details
    assert len(second.asked) == again


async def test_another_broker_is_soon_asked_for_a_change_that_one_does_not_answer() -> None:
    """Its disk hangs, say: it answers everything but this."""
    made, late = TopicDescription("orders", 1, {}, []), DeadlineExceeded("too late")
    first, second = Session("1", NAMES, late), Session("2", made, late)
    upstream, _ = upstream_of(Pool(first, second))
    await upstream.ask_any(ListTopics())
    assert (await upstream.ask_any(CreateTopic("orders", {}, "1f"))).control is made
    assert (first.timeouts_ms[1], second.asked) == (3_000, [Command.CREATE_TOPIC])
    with pytest.raises(DeadlineExceeded):
        await upstream.ask_any(DeleteTopic("orders"), timeout_ms=9_000)
    assert second.timeouts_ms[1] > 3_000, "what is not asked again has its time"


async def test_an_answer_that_is_a_refusal_is_told_and_not_asked_elsewhere() -> None:
    first, second = Session("1", ValidationError("no")), Session("2", NAMES)
    upstream, _ = upstream_of(Pool(first, second))
    with pytest.raises(ValidationError):
        await upstream.ask_any(ListTopics())
    assert not second.asked


async def test_when_no_broker_can_be_reached_the_caller_is_told_so() -> None:
    session = Session("1")
    session.is_up = False
    upstream, _ = upstream_of(Pool(session))
    with pytest.raises(ServiceUnavailable, match="no broker can be reached"):
        await upstream.ask_any(ListTopics())


async def test_a_leader_is_asked_once_and_its_silence_names_it() -> None:
    session = Session("1", LOST)
    upstream, places = upstream_of(Pool(session))
    with pytest.raises(BadGateway) as caught:
        await upstream.serve_at("1", ANONYMOUS, RedriveDead("orders", "g"), (), 1_000)
    assert (caught.value.details["broker"], caught.value.details["node_id"]) == ("broker-1", "1")
    assert len(session.asked) == 1
    assert places.failures == [("orders", -1)]


async def test_one_that_nobody_knows_is_surely_not_asked() -> None:
    upstream, _ = upstream_of(Pool(Session("1")))
    with pytest.raises(BadGateway) as caught:
        await upstream.serve_at("9", ANONYMOUS, RedriveDead("orders", "g"), (), 1_000)
    assert caught.value.details["refused"] is True


@pytest.mark.parametrize("error", [TopicNotFound(), StaleIncarnation()])
async def test_a_leader_that_contradicts_the_map_makes_it_doubted(error: LannerError) -> None:
    upstream, places = upstream_of(Pool(Session("1", error)))
    with pytest.raises(type(error)):
        await upstream.serve_at("1", ANONYMOUS, RedriveDead("orders", "g"), (), 1_000)
    assert places.doubted == ["orders"]


async def test_what_waits_has_a_connection_of_its_own_and_its_place_until_it_is_answered() -> None:
    prompt, patient = Session("1", CountReply(1)), Session("1")
    upstream, _ = upstream_of(Pool(prompt), Pool(patient))
    fetch = Fetch("orders", 0, 0, wait_ms=1_000)
    fetching = asyncio.ensure_future(upstream.serve_at("1", ANONYMOUS, fetch, (), 1_000))
    await until(lambda: bool(patient.owed))
    await upstream.serve_at("1", ANONYMOUS, RedriveDead("orders", "g"), (), 1_000)
    assert upstream.waiting == 1
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    assert upstream.waiting == 1, "the broker still keeps it"
    patient.owed[0](LOST)
    assert upstream.waiting == 0


async def test_the_bytes_beside_an_answer_are_cut_into_their_pieces() -> None:
    batches = [FetchedBatch(0, 1, 1, 2), FetchedBatch(1, 1, 1, 3)]
    session = Session("1", Fetched(0, 2, 2, batches))
    session.bulk = memoryview(b"aabbb")
    upstream, _ = upstream_of(Pool(session))
    answer = await upstream.serve_at("1", ANONYMOUS, Fetch("orders", 0, 0), (), 1_000)
    assert [bytes(piece) for piece in answer.bulk] == [b"aa", b"bbb"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
