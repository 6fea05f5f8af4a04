"""How a broker comes to belong to a cluster, and the record of it that every later start obeys.

The danger is two clusters that take themselves for one, or a disk that lost its memory and votes again. So:

- *One broker founds.* The one at the first of the seeds gathers who the others are, records the list of founders with a
  fresh cluster id, and only then starts. Every other founder records the same list, verbatim, before it votes.
- *No broker founds what exists.* One that meets a recorded list with itself in it takes that one; one that is not in it
  (its disk is new) joins instead, and gets a replica id of its own that never voted before.
- *The record decides.* Once it is there, seeds and addresses to join are not looked at again.
- *A newcomer is told who is there now.* The founders may all be gone; their list only says with whom the log began.

`judge` is the whole decision, without I/O. `Search` asks the others until it comes to one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from lanner.broker.links.notices import Notices
from lanner.broker.replicas.engine import Seat
from lanner.cluster import Registration, encode_found_cluster
from lanner.errors import (
    ConflictError,
    DataDirectoryRefused,
    LannerError,
    ServiceUnavailable,
    ValidationError,
)
from lanner.wire import peers as wire

log = logging.getLogger("lanner.broker")

FORMAT: Final = 1
METADATA_VOTERS_MAX: Final = 5
RECORD_BYTES_MAX: Final = 1 << 20
_ASK_AGAIN_SECONDS: Final = 0.25
_SAY_AGAIN_SECONDS: Final = 5.0

Ask = Callable[[str, wire.PeerInfo], Awaitable[wire.PeerInfoReply]]


class Founding(msgspec.Struct, frozen=True):
    """What is recorded: the cluster, who founded it, and which replica of the metadata is held here."""

    cluster_id: str
    founders: tuple[Registration, ...]  # in order: the first is replica 1 of the metadata's set, and so on
    replica_id: int
    joined: bool = False
    name: str = ""  # of this broker: it keeps it for as long as this record lives
    format: int = FORMAT
    brokers: tuple[Registration, ...] = ()  # those that the cluster had when this one joined; 0.1.0 did not record them

    @property
    def seat(self) -> Seat:
        voters = min(len(self.founders), METADATA_VOTERS_MAX)
        return Seat(self.replica_id, frozenset(range(1, voters + 1)))

    @property
    def told(self) -> tuple[Registration, ...]:
        """The brokers that this one may expect to meet before the metadata says who is there."""
        return self.brokers or self.founders

    @property
    def nodes(self) -> dict[int, str]:
        """Where the founders' replicas of the metadata are."""
        return {number: founder.node_id for number, founder in enumerate(self.founders, start=1)}


def encode_record(founding: Founding) -> bytes:
    return msgspec.json.format(msgspec.json.encode(founding), indent=2) + b"\n"


def decode_record(data: bytes, node_id: str) -> Founding:
    """Decode the record of this broker; refuse anything else, because guessing could split a cluster."""
    try:
        if len(data) > RECORD_BYTES_MAX:
            raise ValueError("it is too long")
        newer = msgspec.json.decode(data, type=_Format).format
        if newer > FORMAT:
            raise DataDirectoryRefused(
                f"founding.json was written by a newer version of Lanner (format {newer}; this version knows "
                f"{FORMAT}); start it with that version"
            )
        found = msgspec.json.decode(data, type=Founding)
        encode_found_cluster(found.cluster_id, found.founders, 0)
        encode_found_cluster(found.cluster_id, found.told, 0)
        if found.nodes.get(found.replica_id, node_id) != node_id or found.replica_id < 1:
            raise ValueError(f"it gives replica {found.replica_id} to another broker")
    except (msgspec.MsgspecError, ValueError, ValidationError) as error:
        raise DataDirectoryRefused(
            f"founding.json does not say which cluster this data belongs to ({error}); restore the file "
            "from a backup, or start with an empty directory to join anew"
        ) from None
    return found


class _Format(msgspec.Struct):
    format: int


# ---------------------------------------------------------------------- the decision


class Found(NamedTuple):
    """This broker is the first of the seeds and has heard all others: it founds the cluster with them."""

    founders: tuple[Registration, ...]


class Adopt(NamedTuple):
    """A list with this broker in it is recorded somewhere: that is the cluster."""

    founding: Founding


class Join(NamedTuple):
    """There is a cluster, and this broker is new to it."""

    address: str


class Wait(NamedTuple):
    """Not everything is known yet, or it does not fit together."""

    reason: str


Verdict = Found | Adopt | Join | Wait


def judge(own: Registration, seeds: Sequence[str], answers: Sequence[wire.PeerInfoReply | None]) -> Verdict:
    """Return what follows from the answers of the seeds, in their order; None for a seed that did not answer."""
    clusters = {answer.cluster_id for answer in answers if answer is not None and answer.cluster_id}
    if len(clusters) > 1:
        return Wait(f"the seeds belong to different clusters ({', '.join(sorted(clusters))}): check their addresses")
    for seed, answer in zip(seeds, answers, strict=True):
        if answer is not None and answer.cluster_id and answer.broker.node_id != own.node_id:
            founders = tuple(registration_of(founder) for founder in answer.founders)
            numbers = [number for number, founder in enumerate(founders, start=1) if founder.node_id == own.node_id]
            if not _is_sound(answer.cluster_id, founders):
                return Wait(f"the broker at {seed} shows a cluster that makes no sense: check what listens there")
            return Adopt(Founding(answer.cluster_id, founders, numbers[0])) if numbers else Join(seed)
    nodes = [None if answer is None else answer.broker.node_id for answer in answers]
    if nodes[0] != own.node_id and None not in nodes and own.node_id not in nodes:
        return Wait(
            f"none of the seeds ({', '.join(seeds)}) leads to this broker: list its own address, too, or use --join"
        )
    if nodes[0] != own.node_id:
        return Wait(f"waiting for the broker at {seeds[0]} to found the cluster")
    others = [seed for seed, answer in zip(seeds, answers, strict=True) if answer and list(seeds) != answer.seeds]
    if others:  # each of two that are told to be the first would found a cluster
        return Wait(f"the brokers at {', '.join(others)} were given other seeds, or in another order: all must agree")
    missing = [seed for seed, node in zip(seeds, nodes, strict=True) if node is None]
    if missing:
        return Wait(f"founding the cluster needs every seed; no answer yet from {', '.join(missing)}")
    founders = tuple(registration_of(answer.broker) for answer in answers if answer is not None)
    try:
        encode_found_cluster(own.node_id, founders, 0)
    except ValidationError as error:
        return Wait(f"the seeds cannot found a cluster: {error.message}")
    return Found(founders)


def _is_sound(cluster_id: str, founders: Sequence[Registration]) -> bool:
    """Check what is to be recorded: it can never be changed."""
    try:
        encode_found_cluster(cluster_id, founders, 0)
    except ValidationError:
        return False
    return True


def registration_of(founder: wire.Founder) -> Registration:
    return Registration(
        founder.name,
        founder.node_id,
        dict(founder.addresses),
        founder.rack,
        founder.feature_min,
        founder.feature_max,
    )


def founder_of(given: Registration) -> wire.Founder:
    return wire.Founder(
        given.name, given.node_id, dict(given.addresses), given.rack, given.feature_min, given.feature_max
    )


# ---------------------------------------------------------------------- asking


class Search:
    """Asks other brokers until this one belongs to a cluster. Records nothing itself."""

    def __init__(self, own: Registration, ask: Ask, fresh_cluster_id: str) -> None:
        self._own = own
        self._ask = ask
        self._fresh_cluster_id = fresh_cluster_id
        self._notices = Notices(log, again_seconds=_SAY_AGAIN_SECONDS)

    def alone(self) -> Founding:
        return Founding(self._fresh_cluster_id, (self._own,), 1)

    async def among(self, seeds: Sequence[str]) -> Founding:
        """Found a cluster with these, or take the one that they have founded."""
        while True:
            verdict = judge(self._own, seeds, await asyncio.gather(*(self._info(seed, seeds) for seed in seeds)))
            if isinstance(verdict, Found):
                return Founding(self._fresh_cluster_id, verdict.founders, 1)
            if isinstance(verdict, Adopt):
                return verdict.founding
            if isinstance(verdict, Join):
                log.warning("the cluster exists and this disk is new to it: joining as a learner")
                return await self.join([verdict.address, *seeds])
            self._notices.say("founding", verdict.reason)
            await asyncio.sleep(_ASK_AGAIN_SECONDS)

    async def join(self, addresses: Sequence[str]) -> Founding:
        """Have a running cluster take this broker in; brokers that answer may name others, which are asked as well."""
        asked = [address for address in dict.fromkeys(addresses) if address != self._own_address]
        while True:
            problems: list[str] = []
            named: list[str] = []
            level = logging.WARNING
            for address in asked:
                try:
                    reply = await self._ask(address, wire.PeerInfo(founder_of(self._own), join=True))
                    return self._taken_in(reply)
                except LannerError as error:
                    problems.append(f"{address}: {error.message}")
                    named += error.details.get("brokers", ())
                    level = logging.ERROR if isinstance(error, ConflictError) else level
            self._notices.say("join", f"not in the cluster yet; asking again: {'; '.join(problems)}", level)
            asked = [one for one in dict.fromkeys([*addresses, *named]) if one != self._own_address]
            await asyncio.sleep(_ASK_AGAIN_SECONDS)

    async def rejoin(self, cluster_id: str, addresses: Sequence[str]) -> Founding:
        """Have the cluster that this broker was part of take it in again; no other will do."""
        others = [address for address in dict.fromkeys(addresses) if address != self._own_address]
        while True:
            answers = await asyncio.gather(*(self._info(address, ()) for address in others))
            found = [
                one for one, answer in zip(others, answers, strict=True) if answer and answer.cluster_id == cluster_id
            ]
            if found:
                return await self.join(found)
            self._notices.say("rejoin", f"nobody of cluster {cluster_id} answers at {', '.join(others)}; asking again")
            await asyncio.sleep(_ASK_AGAIN_SECONDS)

    def _taken_in(self, reply: wire.PeerInfoReply) -> Founding:
        """Return what is to be recorded after an answer; an error says why this broker is not taken in yet."""
        present = tuple(registration_of(one) for one in reply.brokers if one.node_id != self._own.node_id)
        named = [one.addresses["native"] for one in present if "native" in one.addresses]
        if not reply.cluster_id:
            raise ServiceUnavailable("the broker there does not belong to a cluster itself")
        founders = tuple(registration_of(founder) for founder in reply.founders)
        if not _is_sound(reply.cluster_id, founders) or (present and not _is_sound(reply.cluster_id, present)):
            raise ServiceUnavailable("the broker there shows a cluster that makes no sense: check what listens there")
        if not reply.replica_id:
            raise ServiceUnavailable("the cluster has no place for this broker yet", brokers=named)
        return Founding(reply.cluster_id, founders, reply.replica_id, joined=True, brokers=present)

    @property
    def _own_address(self) -> str:
        return self._own.addresses.get("native", "")

    async def _info(self, address: str, seeds: Sequence[str]) -> wire.PeerInfoReply | None:
        if address == self._own_address:  # perhaps only others can dial it
            return wire.PeerInfoReply(founder_of(self._own), seeds=list(seeds))
        try:
            return await self._ask(address, wire.PeerInfo(founder_of(self._own)))
        except LannerError:
            return None


__all__ = [
    "Adopt",
    "Found",
    "Founding",
    "Join",
    "Search",
    "Verdict",
    "Wait",
    "decode_record",
    "encode_record",
    "founder_of",
    "judge",
    "registration_of",
]
