"""What callers without a producer publish: on any broker, once, in order, whatever gets lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from lanner import batch, limits
from lanner.broker.desks.desk import Desk
from lanner.calls import ANONYMOUS, Answer, Bulk, Identity
from lanner.errors import (
    BadGateway,
    LannerError,
    MessageTooLarge,
    NotLeader,
    Overloaded,
    PartitionNotFound,
    ProducerUnknown,
    TopicFull,
)
from lanner.forwarding import asking
from lanner.forwarding import publishes as forwarding_publishes
from lanner.forwarding.publishes import DoorProducers
from lanner.forwarding.values import NewMessage, Stored
from lanner.wire.messages import Call, Command, OpenProducer, ProducerOpened, Publish
from tests.unit.broker.offices import Office, Offices, only, opened


async def values(office: Office, topic: str = "orders") -> dict[int, list[bytes]]:
    """Everything that is stored, by partition, in offset order."""
    found: dict[int, list[bytes]] = {}
    for message in await office.anywhere.peek(ANONYMOUS, topic, None, 0, limits.LIST_ITEMS_MAX):
        found.setdefault(message.partition, []).append(message.value)
    return found


async def publish(office: Office, *texts: bytes, **fields: Any) -> list[Stored]:
    return await office.anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(text, **fields) for text in texts])


def stranger(offices: Offices, set_id: int) -> Office:
    """A broker that does not lead the set."""
    leader = offices.leader(set_id)
    return next(office for office in offices.by_name.values() if office is not leader and office.broker.up)


def watch(leader: Office, problem: Callable[[], LannerError | None] = lambda: None) -> list[tuple[int, int]]:
    """The producer id and the sequence of each batch that other brokers bring to a leader, refused or not."""
    serve, brought = leader.service.serve, []

    async def watched(identity: Identity, call: Call[Any], bulk: Bulk = ()) -> Answer[Any]:
        if isinstance(call, Publish):
            header = batch.read_header(bytes(bulk[0]))
            brought.append((header.producer_id, header.sequence))
            if (error := problem()) is not None:
                raise error
        return await serve(identity, call, bulk)

    leader.service.serve = watched  # type: ignore[method-assign]
    return brought


@pytest.mark.parametrize("name", ["a", "b", "c"])
async def test_messages_go_to_their_partitions_from_any_broker(name: str) -> None:
    async with opened() as offices:
        offices.topic("orders")
        messages = [NewMessage(b"%d" % number, partition=number % 3, priority=number % 10) for number in range(30)]
        stored = await offices[name].anywhere.publish_messages(ANONYMOUS, "orders", messages)
        assert [place.partition for place in stored] == [number % 3 for number in range(30)]
        assert len({(place.partition, place.offset) for place in stored}) == 30
        assert not any(place.duplicate for place in stored)
        assert sorted(value for found in (await values(offices["a"])).values() for value in found) == sorted(
            b"%d" % number for number in range(30)
        )


async def test_a_publish_whose_answer_was_lost_is_stored_once_and_answered_with_its_first_offset() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        offices.lose = only(Command.PUBLISH, times=3)
        (stored,) = await publish(office, b"once")
        assert (stored.offset, stored.duplicate) == (0, False), "its caller did not repeat anything"
        (behind,) = await publish(office, b"twice")
        assert behind.offset == 1
        assert await values(office) == {0: [b"once", b"twice"]}


async def test_a_publish_survives_the_death_of_its_leader_without_a_double() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader, office = offices.leader(set_id), stranger(offices, set_id)

        def die(node_id: str, command: Command) -> bool:
            if command is Command.PUBLISH and leader.broker.up:
                offices.flock.settle()  # it is on a majority, and acknowledged; only the answer is gone
                offices.stop(leader)
            return not leader.broker.up and node_id == leader.node_id

        offices.lose = die
        stored = await asyncio.gather(*(publish(office, b"%d" % number) for number in range(20)))
        assert not leader.broker.up
        kept = (await values(office))[0]
        assert sorted(kept) == sorted(b"%d" % number for number in range(20))
        for number, (place,) in enumerate(stored):
            assert kept[place.offset] == b"%d" % number


async def test_a_publish_here_goes_to_the_next_leader_when_leadership_moves() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader, other = offices.leader(set_id), stranger(offices, set_id)
        stop = asyncio.Event()
        sent: list[tuple[bytes, Stored]] = []

        async def keep_publishing(worker: int) -> None:
            number = 0
            while not stop.is_set():
                text = b"%d-%d" % (worker, number)
                (place,) = await publish(leader, text)
                sent.append((text, place))
                number += 1

        working = [asyncio.create_task(keep_publishing(worker)) for worker in range(4)]
        for target in (other.name, leader.name):
            await other.anywhere.change_cluster(ANONYMOUS, "transfer", topic="orders", partition=0, target=target)
            async with asyncio.timeout(20):
                while offices.flock.leader_of(set_id) is not offices[target].broker:
                    await asyncio.sleep(0.005)
        stop.set()
        await asyncio.gather(*working)
        (_, offsets) = await other.anywhere.offsets(ANONYMOUS, "orders")
        assert offsets[0].end_offset == len(sent), "each once"
        assert len({place.offset for _, place in sent}) == len(sent)


async def test_an_idempotency_key_is_told_from_a_retry_of_the_door() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        offices.lose = only(Command.PUBLISH)
        await publish(office, b"x", dedup_id=b"key")
        (again,) = await publish(offices.leader(set_id), b"x", dedup_id=b"key")
        assert (again.offset, again.duplicate) == (0, True)
        assert await values(office) == {0: [b"x"]}


async def test_parts_of_one_call_that_belong_behind_each_other_keep_their_order() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        offices.lose = only(Command.PUBLISH, times=2)
        offices.refuse = only(Command.PUBLISH, times=1)
        large = [bytes([number]) * 900_000 for number in range(6)]
        stored = await publish(office, *large)
        assert [place.offset for place in stored] == list(range(6))


async def test_a_refusal_is_told_at_once_and_leaves_no_gap() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1, max_bytes=100_000)
        office = stranger(offices, set_id)
        await publish(office, b"x" * 90_000)
        with pytest.raises(TopicFull):
            await publish(office, b"y" * 90_000)
        (stored,) = await publish(office, b"small")
        assert stored.offset == 1
        with pytest.raises(MessageTooLarge):
            await publish(office, b"z" * (limits.MESSAGE_BYTES_MAX + 1))
        with pytest.raises(PartitionNotFound):
            await publish(office, b"z", partition=7)


async def test_when_the_outcome_stays_unknown_its_sequence_is_never_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader, office = offices.leader(set_id), stranger(offices, set_id)
        await publish(office, b"first")
        shorten(monkeypatch, 150)
        offices.lose = lambda node_id, command: command is Command.PUBLISH
        with pytest.raises(BadGateway, match=f"broker {leader.name} did not answer"):
            await publish(office, b"outcome unknown")
        offices.lose = lambda node_id, command: False
        await publish(office, b"last")
        assert await values(office) == {0: [b"first", b"outcome unknown", b"last"]}


async def test_when_nobody_ever_led_no_outcome_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        brought = watch(offices.leader(set_id))
        await publish(office, b"first")
        shorten(monkeypatch, 100)
        office.heard_leader = lambda set_id: ""
        with pytest.raises(NotLeader):
            await publish(office, b"nowhere")
        office.heard_leader = office.leader_by_pulses
        await publish(office, b"last")
        (producer, first), last = brought
        assert last == (producer, first + 1), "no sequence is in doubt, so the same producer goes on"
        assert await values(office) == {0: [b"first", b"last"]}


async def test_a_producer_that_was_forgotten_begins_again_as_another() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        problems: list[LannerError] = []
        brought = watch(offices.leader(set_id), lambda: problems.pop() if problems else None)
        await publish(office, b"first")
        (forgotten, _), problems[:] = brought[0], [ProducerUnknown("after a week")]
        (stored,) = await publish(office, b"second")
        assert stored.offset == 1
        await publish(office, b"third")
        _, refused, (another, again), last = brought
        assert refused == (forgotten, 1) and another != forgotten
        assert again == 0 and last == (another, 1)


async def test_once_an_outcome_is_unknown_a_full_broker_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        problems: list[LannerError] = [Overloaded(retry_after_ms=10), Overloaded(retry_after_ms=10)]
        lost: list[str] = []
        watch(offices.leader(set_id), lambda: problems.pop() if lost and problems else None)

        def lose(node_id: str, command: Command) -> bool:
            if command is not Command.PUBLISH or lost:
                return False
            lost.append(node_id)
            return True

        offices.lose = lose
        (stored,) = await publish(office, b"x")
        assert stored.offset == 0 and not problems
        problems.append(Overloaded(retry_after_ms=10))
        with pytest.raises(Overloaded):
            await publish(office, b"y")


async def test_a_caller_who_gives_up_leaves_a_slot_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding_publishes, "SLOTS_MAX", 1)
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        brought = watch(offices.leader(set_id))
        await publish(office, b"first")
        offices.refuse = lambda node_id, command: command is Command.PUBLISH
        publishing = asyncio.create_task(publish(office, b"given up"))
        await asyncio.sleep(0.05)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        offices.refuse = lambda node_id, command: False
        await asyncio.wait_for(publish(office, b"last"), 10)  # it is not under way any more
        (first, _), (last, sequence) = brought
        assert last != first and sequence == 0
        assert await values(office) == {0: [b"first", b"last"]}


# ------------------------------------------------------------------ slots


class Ids:
    """Hands out producer ids."""

    def __init__(self) -> None:
        self.handed_out = 100

    async def handle(self, call: OpenProducer) -> Answer[ProducerOpened]:
        await asyncio.sleep(0)
        self.handed_out += 1
        return Answer(ProducerOpened(self.handed_out))


async def test_slots_are_used_again_and_few_producers_are_enough() -> None:
    ids = Ids()
    producers = DoorProducers(cast(Desk, ids))
    for lane in (0, 9):
        slots = await asyncio.gather(*(producers.take(1, lane) for _ in range(5)))
        assert len({slot.producer_id for slot in slots}) == 5
        for slot in slots:
            producers.give_back(1, lane, slot)
    assert ids.handed_out == 105, "each lane counts for itself, so the ids serve them all"


async def test_one_who_waits_for_a_slot_gets_the_next_and_a_cancelled_one_passes_its_turn_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding_publishes, "SLOTS_MAX", 1)
    producers = DoorProducers(cast(Desk, Ids()))
    slot = await producers.take(1, 4)
    first, second, third = (asyncio.create_task(producers.take(1, 4)) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    producers.give_back(1, 4, slot)
    second.cancel()  # it was its turn
    assert await asyncio.wait_for(third, 1) is slot
    await asyncio.gather(first, second, return_exceptions=True)


async def test_lanes_of_deleted_topics_are_forgotten_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding_publishes, "_LANES_KNOWN_MAX", 2)
    producers = DoorProducers(cast(Desk, Ids()))
    slots = {set_id: await producers.take(set_id, 4) for set_id in (1, 2, 3, 4)}
    for set_id in (1, 2, 3):  # that of 4 is under way
        producers.give_back(set_id, 4, slots[set_id])
    producers.prune({1})
    producers.give_back(4, 4, slots[4])
    assert [await producers.take(set_id, 4) is slots[set_id] for set_id in (1, 2, 3, 4)] == [True, False, False, True]


async def test_a_slot_that_could_not_be_made_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding_publishes, "SLOTS_MAX", 1)

    class Nobody:
        async def handle(self, call: OpenProducer) -> Answer[ProducerOpened]:
            raise NotLeader()

    producers = DoorProducers(cast(Desk, Nobody()))
    for _ in range(2):  # nobody waits for a slot that there is not
        with pytest.raises(NotLeader):
            await asyncio.wait_for(producers.take(1, 4), 1)


def shorten(monkeypatch: pytest.MonkeyPatch, deadline_ms: int) -> None:
    """Calls give up sooner."""
    monkeypatch.setattr(asking.Tries.__init__, "__defaults__", (deadline_ms,))
