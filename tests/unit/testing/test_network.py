from __future__ import annotations

from random import Random

from lanner.raft import Entry, EntryKind, Message, MessageKind
from lanner.testing.network import DELAY_MS_MAX, DETOUR_MS_MAX, SimNetwork

LATE_MS = DELAY_MS_MAX + DETOUR_MS_MAX


def heartbeat(number: int, sender: int = 1, receiver: int = 2) -> Message:
    return Message(kind=MessageKind.HEARTBEAT, sender=sender, receiver=receiver, term=1, commit_index=number)


def arrivals(network: SimNetwork, now_ms: int = LATE_MS) -> list[int]:
    found = []
    while (letter := network.arrive(now_ms)) is not None:
        found.append(letter[1].commit_index)
    return found


def exchange(seed: int) -> list[int]:
    network = SimNetwork(Random(seed))
    network.loss, network.doubling, network.detour = 0.2, 0.2, 0.2
    for number in range(200):
        network.send(1, heartbeat(number), number)
    return arrivals(network, 200 + LATE_MS)


def test_a_message_arrives_as_it_was_sent_with_its_set_and_not_before_its_time() -> None:
    network = SimNetwork(Random(1))
    entries = [Entry(6, 2, EntryKind.NORMAL, b"payload"), Entry(7, 3, EntryKind.NORMAL, b"")]
    message = Message(
        kind=MessageKind.APPEND,
        sender=1,
        receiver=2,
        term=3,
        log_index=5,
        log_term=2,
        commit_index=4,
        entries=entries,
        context=9,
    )
    network.send(17, message, 100)
    assert len(network) == 1
    assert network.arrive(99) is None
    assert network.arrive(100 + DELAY_MS_MAX) == (17, message)
    assert network.arrive(1_000) is None


def test_a_calm_network_loses_and_doubles_nothing() -> None:
    network = SimNetwork(Random(2))
    for number in range(100):
        network.send(1, heartbeat(number), number * 10)
    assert arrivals(network, 2_000) == list(range(100))


def test_a_rough_network_loses_doubles_and_reorders() -> None:
    found = exchange(3)
    assert set(found) < set(range(200))
    assert len(found) > len(set(found))
    assert found != sorted(found)


def test_the_seed_alone_decides() -> None:
    assert exchange(4) == exchange(4)
    assert exchange(4) != exchange(5)


def test_a_split_is_heard_by_nobody_on_the_other_side_and_by_everybody_on_ones_own() -> None:
    network = SimNetwork(Random(6))
    network.split([1], [2, 3])
    network.send(1, heartbeat(1, 1, 2), 0)
    network.send(1, heartbeat(2, 3, 1), 0)
    network.send(1, heartbeat(3, 2, 3), 0)
    assert arrivals(network) == [3]
    assert not network.whole
    network.heal()
    network.send(1, heartbeat(4, 1, 2), 0)
    assert arrivals(network) == [4]
    assert network.whole


def test_a_one_way_split_lets_answers_through() -> None:
    network = SimNetwork(Random(7))
    network.cut(1, 2)
    network.send(1, heartbeat(1, 1, 2), 0)
    network.send(1, heartbeat(2, 2, 1), 0)
    assert arrivals(network) == [2]


def test_what_was_on_its_way_when_the_link_was_cut_is_lost() -> None:
    network = SimNetwork(Random(8))
    network.send(1, heartbeat(1), 0)
    network.split([1], [2])
    assert arrivals(network) == []
    assert network.counts["lost"] == 1


def test_calm_ends_every_fault() -> None:
    network = SimNetwork(Random(9))
    network.loss = network.doubling = network.detour = 1.0
    network.cut(1, 2)
    network.calm()
    network.send(1, heartbeat(1), 0)
    assert arrivals(network, DELAY_MS_MAX) == [1]


def test_frames_of_other_kinds_travel_between_any_numbers() -> None:
    network = SimNetwork(Random(1))
    network.post(7, 8, 3, b"frame", 100, "pulse")
    assert network.next_ms is not None
    letter = network.take(100 + DELAY_MS_MAX)
    assert letter is not None
    assert (letter.sender, letter.receiver, letter.set_id, letter.frame, letter.kind) == (7, 8, 3, b"frame", "pulse")
    assert network.next_ms is None


def test_what_must_come_once_is_never_doubled() -> None:
    network = SimNetwork(Random(1))
    network.doubling = 1.0
    network.post(1, 2, 0, b"once", 0, "call", once=True)
    network.post(1, 2, 0, b"twice", 0, "call")
    assert len(network) == 3


def test_a_letter_that_cannot_be_taken_now_comes_again() -> None:
    network = SimNetwork(Random(1))
    network.post(1, 2, 0, b"frame", 0)
    letter = network.take(LATE_MS)
    assert letter is not None
    network.redeliver(letter, 5_000)
    assert network.take(4_999) is None
    assert network.take(5_000) is not None


def test_every_loss_is_told() -> None:
    network = SimNetwork(Random(1))
    lost: list[bytes] = []
    network.on_loss = lambda letter: lost.append(letter.frame)
    network.post(1, 2, 0, b"on its way", 0)
    network.cut(1, 2)
    network.post(1, 2, 0, b"never sent", 0)
    assert network.take(LATE_MS) is None
    assert lost == [b"never sent", b"on its way"]
