"""The decision who founds, who adopts and who joins; and the record that every later start obeys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from lanner.broker.links.founding import (
    Adopt,
    Found,
    Founding,
    Join,
    Search,
    Wait,
    decode_record,
    encode_record,
    founder_of,
    judge,
    registration_of,
)
from lanner.broker.replicas.engine import Seat
from lanner.cluster import Registration
from lanner.errors import ConflictError, ConnectionLost, DataDirectoryRefused
from lanner.wire.peers import PeerInfo, PeerInfoReply

SEEDS = ("a:1", "b:1", "c:1")
A, B, C, D = (Registration(name, name * 8, {"native": f"{name}:1"}, "rack") for name in "abcd")


def unfounded(broker: Registration, seeds: tuple[str, ...] = SEEDS) -> PeerInfoReply:
    return PeerInfoReply(founder_of(broker), seeds=list(seeds))


def founded(broker: Registration, *founders: Registration, cluster_id: str = "x") -> PeerInfoReply:
    return PeerInfoReply(founder_of(broker), cluster_id, [founder_of(one) for one in founders])


# ---------------------------------------------------------------------- the decision


def test_the_first_seed_founds_when_it_has_heard_all() -> None:
    assert judge(A, SEEDS, [unfounded(A), unfounded(B), unfounded(C)]) == Found((A, B, C))


def test_the_first_seed_waits_for_those_that_are_missing_and_names_them() -> None:
    verdict = judge(A, SEEDS, [unfounded(A), None, unfounded(C)])
    assert isinstance(verdict, Wait)
    assert "no answer yet from b:1" in verdict.reason


@pytest.mark.parametrize("first", [None, unfounded(A)], ids=["silent", "undecided"])
def test_the_others_wait_for_the_first_seed(first: PeerInfoReply | None) -> None:
    verdict = judge(B, SEEDS, [first, unfounded(B), unfounded(C)])
    assert verdict == Wait("waiting for the broker at a:1 to found the cluster")


def test_a_recorded_list_with_this_broker_in_it_is_taken_verbatim() -> None:
    verdict = judge(C, SEEDS, [None, founded(B, A, B, C), unfounded(C)])
    assert verdict == Adopt(Founding("x", (A, B, C), 3))


def test_a_broker_that_is_not_in_the_recorded_list_joins_instead() -> None:
    wiped = Registration("b", "another", {"native": "b:1"})
    assert judge(wiped, SEEDS, [founded(A, A, B, C), unfounded(wiped), None]) == Join("a:1")


def test_the_first_seed_with_a_new_disk_joins_what_exists() -> None:
    wiped = Registration("a", "another", {"native": "a:1"})
    assert judge(wiped, SEEDS, [unfounded(wiped), None, founded(C, A, B, C)]) == Join("c:1")


def test_seeds_of_different_clusters_are_a_reason_to_stop_and_look() -> None:
    verdict = judge(D, SEEDS, [founded(A, A, cluster_id="x"), founded(B, B, cluster_id="y"), None])
    assert isinstance(verdict, Wait)
    assert "different clusters (x, y)" in verdict.reason


def test_a_broker_whose_address_is_not_among_the_seeds_is_told_so() -> None:
    verdict = judge(D, SEEDS, [unfounded(A), unfounded(B), unfounded(C)])
    assert isinstance(verdict, Wait)
    assert "leads to this broker" in verdict.reason


def test_founders_that_cannot_be_one_cluster_are_not_recorded() -> None:
    twin = Registration("b", "other", {"native": "c:1"})
    verdict = judge(A, SEEDS, [unfounded(A), unfounded(B), unfounded(twin)])
    assert isinstance(verdict, Wait)
    assert "two of the brokers have the same name" in verdict.reason
    assert isinstance(judge(A, SEEDS, [unfounded(A), unfounded(B), unfounded(B)]), Wait)


def test_brokers_that_were_given_other_seeds_found_nothing_together() -> None:
    other = ("b:1", "a:1", "c:1")
    verdict = judge(A, SEEDS, [unfounded(A), unfounded(B, other), unfounded(C, ())])
    assert isinstance(verdict, Wait)
    assert "the brokers at b:1, c:1 were given other seeds" in verdict.reason
    assert isinstance(judge(B, other, [unfounded(B, other), unfounded(A), unfounded(C, ())]), Wait)


def test_a_recorded_list_that_makes_no_sense_is_not_taken() -> None:
    verdict = judge(C, SEEDS, [founded(A, A, A, C), None, unfounded(C)])
    assert isinstance(verdict, Wait)
    assert "makes no sense" in verdict.reason


# ---------------------------------------------------------------------- the record


def test_the_record_says_who_votes_and_where_they_are() -> None:
    founding = Founding("x", (A, B, C), 2, name="b")
    assert founding.seat == Seat(2, frozenset({1, 2, 3}))
    assert founding.nodes == {1: A.node_id, 2: B.node_id, 3: C.node_id}
    assert decode_record(encode_record(founding), B.node_id) == founding


def test_the_first_five_founders_vote() -> None:
    many = tuple(Registration(f"n{number}", f"id{number}", {}) for number in range(7))
    assert Founding("x", many, 7).seat == Seat(7, frozenset({1, 2, 3, 4, 5}))


def test_a_newcomer_keeps_a_replica_of_its_own() -> None:
    joined = Founding("x", (A, B, C), 4, joined=True, name="d")
    assert decode_record(encode_record(joined), D.node_id).seat == Seat(4, frozenset({1, 2, 3}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"format": 1}',
        encode_record(Founding("x", (), 1)),
        encode_record(Founding("", (A,), 1)),
        encode_record(Founding("x", (A, A), 1)),
        encode_record(Founding("x", (B, A), 1)),
        encode_record(Founding("x", (A,), 0)),
        b'{"format": 1, "pad": "' + b"x" * (1 << 20) + b'"}',
    ],
    ids=["empty", "nothing", "list", "noise", "cut", "nobody", "nameless", "twins", "another's", "zero", "long"],
)
def test_anything_else_in_its_place_is_refused(data: bytes) -> None:
    with pytest.raises(
        DataDirectoryRefused, match="restore the file from a backup, or start with an empty directory to join anew"
    ):
        decode_record(data, A.node_id)


def test_a_record_of_a_newer_version_is_refused() -> None:
    newer = msgspec.json.encode({"format": 2, "something": "else"})
    with pytest.raises(DataDirectoryRefused, match="newer version"):
        decode_record(newer, A.node_id)


def test_registrations_travel_unchanged() -> None:
    assert registration_of(founder_of(A)) == A


# ---------------------------------------------------------------------- asking


Answer = Callable[[str, PeerInfo], Awaitable[PeerInfoReply]]


def answering(*answers: dict[str, PeerInfoReply | Exception]) -> tuple[Answer, list[tuple[str, bool]]]:
    """Brokers that answer from one of these after the other, the last for ever; and what they were asked."""
    asked: list[tuple[str, bool]] = []
    rounds: dict[str, int] = {}

    async def ask(address: str, control: PeerInfo) -> PeerInfoReply:
        asked.append((address, control.join))
        place = rounds[address] = rounds.get(address, -1) + 1
        found = answers[min(place, len(answers) - 1)].get(address, ConnectionLost("nobody there"))
        if isinstance(found, Exception):
            raise found
        return found

    return ask, asked


async def test_a_broker_without_seeds_is_a_cluster_of_one() -> None:
    ask, asked = answering({})
    assert Search(A, ask, "fresh").alone() == Founding("fresh", (A,), 1)
    assert asked == []


async def test_the_founder_asks_until_everybody_has_answered() -> None:
    first = {"a:1": unfounded(A), "b:1": unfounded(B)}
    ask, asked = answering(first, {**first, "c:1": unfounded(C)})
    async with asyncio.timeout(5):
        assert await Search(A, ask, "fresh").among(SEEDS) == Founding("fresh", (A, B, C), 1)
    assert asked.count(("c:1", False)) == 2


async def test_a_founder_takes_the_list_that_the_first_has_recorded() -> None:
    ask, _ = answering({"b:1": unfounded(B)}, {"a:1": founded(A, A, B, C), "b:1": unfounded(B)})
    async with asyncio.timeout(5):
        assert await Search(B, ask, "fresh").among(SEEDS) == Founding("x", (A, B, C), 2)


async def test_a_new_disk_joins_and_asks_again_until_it_has_a_place(caplog: pytest.LogCaptureFixture) -> None:
    known = founded(A, A, B, C)
    given = msgspec.structs.replace(known, replica_id=4)
    ask, asked = answering({"a:1": known}, {"a:1": known}, {"a:1": given})
    async with asyncio.timeout(5):
        assert await Search(D, ask, "fresh").among(SEEDS) == Founding("x", (A, B, C), 4, joined=True)
    assert ("a:1", True) in asked
    assert "joining as a learner" in caplog.text


async def test_an_answer_that_makes_no_sense_is_not_joined(caplog: pytest.LogCaptureFixture) -> None:
    senseless = PeerInfoReply(founder_of(A), "x", [founder_of(A), founder_of(A)], 2)
    ask, _ = answering({"a:1": senseless}, {"a:1": PeerInfoReply(founder_of(A), "x", [founder_of(A)], 2)})
    async with asyncio.timeout(5):
        assert await Search(D, ask, "fresh").join(["a:1"]) == Founding("x", (A,), 2, joined=True)
    assert "shows a cluster that makes no sense" in caplog.text


async def test_a_broker_need_not_be_able_to_dial_itself() -> None:
    ask, asked = answering({"b:1": unfounded(B), "c:1": unfounded(C)})
    async with asyncio.timeout(5):
        assert await Search(A, ask, "fresh").among(SEEDS) == Founding("fresh", (A, B, C), 1)
    assert ("a:1", False) not in asked


async def test_a_refused_newcomer_says_why_and_goes_on_asking(caplog: pytest.LogCaptureFixture) -> None:
    taken = ConflictError("the name is taken")
    given = PeerInfoReply(founder_of(A), "x", [founder_of(A)], 2)
    ask, _ = answering({"a:1": taken}, {"a:1": unfounded(A)}, {"a:1": given})
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(5):
            assert await Search(D, ask, "fresh").join(["a:1"]) == Founding("x", (A,), 2, joined=True)
    assert "not in the cluster yet; asking again: a:1: the name is taken" in caplog.text
    assert "does not belong to a cluster itself" in caplog.text


async def test_a_newcomer_is_told_who_is_there_now_and_records_it() -> None:
    present = [founder_of(one) for one in (C, D)]
    reply = PeerInfoReply(founder_of(C), "x", [founder_of(A), founder_of(B)], 5, brokers=present)
    ask, _ = answering({"c:1": reply})
    async with asyncio.timeout(5):
        founding = await Search(D, ask, "fresh").join(["c:1"])
    assert founding == Founding("x", (A, B), 5, joined=True, brokers=(C,))
    assert founding.told == (C,)
    assert founding.seat == Seat(5, frozenset({1, 2})), "the log began with the founders"
    assert decode_record(encode_record(founding), D.node_id) == founding


def test_a_record_of_the_last_release_names_the_founders_only() -> None:
    old = Founding("x", (A, B), 5, joined=True, name="d")
    document = msgspec.json.decode(encode_record(old))
    del document["brokers"]
    found = decode_record(msgspec.json.encode(document), D.node_id)
    assert found == old
    assert found.told == (A, B)


async def test_a_newcomer_asks_past_the_dead_and_says_whom_it_asked(caplog: pytest.LogCaptureFixture) -> None:
    waiting = PeerInfoReply(founder_of(B), "x", [founder_of(A)], 0, brokers=[founder_of(B), founder_of(C)])
    given = PeerInfoReply(founder_of(C), "x", [founder_of(A)], 4)
    ask, asked = answering({"b:1": waiting, "c:1": given})
    async with asyncio.timeout(5):
        assert await Search(D, ask, "fresh").join(["a:1", "d:1", "b:1"]) == Founding("x", (A,), 4, joined=True)
    assert [address for address, _ in asked] == ["a:1", "b:1", "a:1", "b:1", "c:1"], "never itself; those named as well"
    assert "asking again: a:1: nobody there; b:1: the cluster has no place for this broker yet" in caplog.text


async def test_a_broker_whose_disk_was_set_aside_goes_back_to_its_own_cluster_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    foreign = PeerInfoReply(founder_of(B), "y", [founder_of(B)], 2)
    own = PeerInfoReply(founder_of(A), "x", [founder_of(A)], 2)
    ask, asked = answering({"b:1": foreign}, {"b:1": foreign}, {"b:1": foreign, "a:1": own})
    async with asyncio.timeout(5):
        assert await Search(D, ask, "fresh").rejoin("x", ["a:1", "b:1"]) == Founding("x", (A,), 2, joined=True)
    assert ("b:1", True) not in asked
    assert "nobody of cluster x answers" in caplog.text
