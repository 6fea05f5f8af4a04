"""What a caller's word stands for where a partition is led: a fence, or a refusal.

A member says who it is, and which view of its group it acts on. This broker believes neither: it looks both up in its
own copy of the metadata (`resolve`). A copy that is behind what the caller has seen waits for a moment, and then sends
the caller away (GenerationAhead): guessing could lock a group out for ever. What comes out is held against the fence
that the partition has accepted, here by a look, and again where the partition decides.

- Groups that never had members cost one look into a table, and stand for what they always did.
- A member is heard of by each of its calls (`Hearing`), also by those that are refused.
- Settles are never fenced: the token of a lease is a fence of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, Protocol

from lanner.broker.ports import Conditions
from lanner.broker.replicas.engine import Engine
from lanner.broker.replicas.replica import Replica
from lanner.cluster import Topic
from lanner.errors import (
    DeadlineExceeded,
    GenerationAhead,
    InstanceFenced,
    LannerError,
    MemberFenced,
    MembershipRequired,
    MemberUnknown,
)
from lanner.partition import Fence
from lanner.partition.fences import check_fence

REFUSALS: Final = (
    MemberFenced,
    MemberUnknown,
    InstanceFenced,
    MembershipRequired,
)  # final for what the caller has seen
_NOBODY: Final = nullcontext()
CATCHING_UP_MS: Final = 1_000


class Hearing(Protocol):
    """Where it is noted that members live."""

    def heard(self, group: str, member_id: str) -> None: ...
    def present(self, group: str, member_id: str) -> AbstractContextManager[None]: ...


class Word(Protocol):
    """What a caller says of itself: a member's id, and the (number, generation) that it has seen."""

    @property
    def group(self) -> str: ...
    @property
    def member_id(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def generation(self) -> int: ...


class Said(NamedTuple):
    """A word, where the call itself is none."""

    group: str
    member_id: str = ""
    number: int = 0
    generation: int = 0


class Fencing:
    """Resolves callers, from this broker's copy of the metadata."""

    def __init__(self, engine: Engine, waiting: Conditions, hearing: Hearing) -> None:
        self._engine = engine
        self._waiting = waiting
        self._hearing = hearing

    def hear(self, group: str, member_id: str) -> None:
        if member_id:
            self._hearing.heard(group, member_id)

    def present(self, group: str, member_id: str) -> AbstractContextManager[None]:
        """Hear of a member for as long as its call waits."""
        return self._hearing.present(group, member_id) if member_id else _NOBODY

    def concerns(self, group: str, member_id: str = "") -> bool:
        """Whether the caller must be resolved for each partition. Else it is an outsider, and no group is known."""
        return bool(member_id) or self._engine.cluster.group(group) is not None

    def outside(self) -> Fence | None:
        """What callers stand for in groups that are not known here; None: no group has ever had members."""
        return self._engine.cluster.outside

    async def fence(self, word: Word, topic: Topic, partition: int) -> Fence | None:
        """What this caller stands for on a partition; one of the refusals, or GenerationAhead."""
        if not self.concerns(word.group, word.member_id):
            return self.outside()
        place = (topic.incarnation, partition)
        fence = self._resolve(word, place)
        if fence is None:
            await self._catch_up(word)
            fence = self._resolve(word, place)
            assert fence is not None, "a copy that has caught up knows"
        return fence

    async def fences(self, word: Word, topic: Topic, replicas: Iterable[tuple[int, Replica]]) -> dict[int, Fence]:
        """The same for several partitions that are led here, each held against what its partition has accepted."""
        found: dict[int, Fence] = {}
        for partition, replica in replicas:
            fence = await self.fence(word, topic, partition)
            assert fence is not None, "asked of groups that are known alone"
            self.check(word, partition, replica, fence)
            found[partition] = fence
        return found

    def check(self, word: Word, partition: int, replica: Replica, fence: Fence | None) -> None:
        """Refuse what lies below the fence, as far as this replica has applied."""
        try:
            check_fence(word.group, replica.partition.fence(word.group), fence)
        except LannerError as error:
            raise placed(error, partition, word.member_id) from None

    def _resolve(self, word: Word, place: tuple[int, int]) -> Fence | None:
        return self._engine.cluster.resolve(word.group, word.member_id, (word.number, word.generation), place)

    async def _catch_up(self, word: Word) -> None:
        """Wait for a moment until this copy knows what the caller has seen."""
        seen = (word.number, word.generation)
        try:
            await self._waiting.until(lambda: not self._engine.cluster.is_behind(word.group, seen), CATCHING_UP_MS)
        except DeadlineExceeded:
            raise GenerationAhead(
                f"this broker has not heard of generation {word.generation} of group {word.group!r} within "
                f"{CATCHING_UP_MS} ms; try again soon",
                group=word.group,
                generation=word.generation,
            ) from None


def placed(error: LannerError, partition: int, member_id: str = "") -> LannerError:
    """The error, with the partition that it is about: a call may name many."""
    error.details.setdefault("partition", partition)
    if member_id:
        error.details.setdefault("member", member_id)
    return error
