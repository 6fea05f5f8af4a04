"""What a member of a group leaves unsaid over doors whose callers do not follow views themselves.

A call of a member names the view that it acts on: the group's number and a generation. A caller of REST or gRPC may
leave out the number, which follows from the member's id, and, when it polls, the generation. A poll that names no
partitions is of what the member holds, and goes on with what it holds next when that changes while it waits.

All of it is asked of this broker's copy of the metadata, by heartbeats: so who polls is heard of. A copy may not know
of a member yet that joined elsewhere a moment ago; it is brought up to date before the member is told that it is none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from lanner.calls import Identity
from lanner.errors import GroupNotFound, LannerError, MemberFenced, MemberUnknown
from lanner.forwarding.unpacking import Handed
from lanner.wire.members import Heartbeat, ListMembers, MemberView
from lanner.wire.messages import Poll

if TYPE_CHECKING:
    from lanner.api.ports import Service

SESSION_MS: Final = (
    30_000  # of members over REST and gRPC, unless they say another: they have no heartbeats of their own
)
_FENCED_MS: Final = 1_000  # so long a fenced poll waits to hear what the member has now
_PAUSE_S: Final = 0.05  # between heartbeats that brought nothing and did not wait


async def view_of(service: Service, identity: Identity, group: str, member_id: str) -> MemberView:
    """What a member has now, as this broker knows."""
    asked = Heartbeat(group, member_id, 0, 0)
    try:
        return (await service.ask(identity, asked)).control
    except MemberUnknown as error:
        unknown = error
    try:
        await service.ask(identity, ListMembers(group, limit=1))  # which hears the latest first
    except GroupNotFound:
        raise unknown from None
    return (await service.ask(identity, asked)).control


async def seen_by(
    service: Service, identity: Identity, group: str, member_id: str, number: int, generation: int
) -> tuple[int, int]:
    """The view that a member acts on; what it left out is what it has now."""
    if number and generation:
        return number, generation
    view = await view_of(service, identity, group, member_id)
    return number or view.number, generation or view.generation


async def poll_as_member(service: Service, identity: Identity, call: Poll) -> Handed:
    """A poll of a member: of the partitions that it names, or of what it holds."""
    if call.partitions is None:
        return await _Following(service, identity, call).run()
    number, generation = await seen_by(service, identity, call.group, call.member_id, call.number, call.generation)
    return await service.poll_messages(identity, replace(call, number=number, generation=generation))


class _Following:
    """One poll of what a member holds, while that may change."""

    def __init__(self, service: Service, identity: Identity, call: Poll) -> None:
        self._service = service
        self._identity = identity
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + call.wait_ms / 1_000
        self._view: MemberView

    @property
    def _left_ms(self) -> int:
        return max(0, round((self._ends - self._loop.time()) * 1_000))

    async def run(self) -> Handed:
        self._view = await view_of(self._service, self._identity, self._call.group, self._call.member_id)
        while True:
            seen = self._view
            try:
                handed = await self._round()
            except MemberFenced:  # this broker's copy is behind that of a leader, or was until a moment ago
                if self._view is seen and not await self._heard_within(_FENCED_MS):
                    raise
                continue
            if handed.messages or not self._left_ms:
                return handed

    async def _round(self) -> Handed:
        """Poll what the member holds now, until there is something, time is over, or it holds something else."""
        mine, left_ms = self._held(), self._left_ms
        if mine == []:
            await self._heard_within(left_ms)
            return Handed([])
        if not left_ms:
            return await self._poll(mine, 0)
        polling = asyncio.ensure_future(self._poll(mine, left_ms))
        hearing = asyncio.ensure_future(self._heard_within(left_ms))
        try:
            await asyncio.wait({polling, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if polling.done() or not hearing.result():
                return await polling
        except BaseException:
            await _undone(polling)
            raise
        finally:
            hearing.cancel()
        return await _ended(polling)

    def _held(self) -> list[int] | None:
        """The partitions to poll; None: all."""
        if self._view.shared:
            return None
        newest = self._call.generation or self._view.generation
        return [one.partition for one in self._view.held if one.topic == self._call.topic and one.grant <= newest]

    async def _poll(self, partitions: list[int] | None, wait_ms: int) -> Handed:
        view = self._view
        call = replace(
            self._call,
            partitions=partitions,
            wait_ms=wait_ms,
            number=view.number,
            generation=self._call.generation or view.generation,
        )
        return await self._service.poll_messages(self._identity, call)

    async def _heard_within(self, wait_ms: int) -> bool:
        """Send heartbeats until the view changes; False: time was over before."""
        ends = self._loop.time() + wait_ms / 1_000
        seen = self._view
        while (left_s := ends - self._loop.time()) > 0:
            began = self._loop.time()
            asked = Heartbeat(
                self._call.group, self._call.member_id, seen.number, seen.generation, wait_ms=round(left_s * 1_000)
            )
            try:
                heard = (await self._service.ask(self._identity, asked)).control
            except LannerError as error:
                if not error.retryable:
                    raise
            else:
                if heard.news and (heard.number, heard.generation) > (seen.number, seen.generation):
                    self._view = heard
                    return True
            if self._loop.time() - began < _PAUSE_S:
                await asyncio.sleep(min(_PAUSE_S, max(0.0, ends - self._loop.time())))
        return False


async def _ended(polling: asyncio.Future[Handed]) -> Handed:
    """End a poll of what the member no longer holds; what it brings all the same is handed out."""
    polling.cancel()
    await asyncio.wait({polling})
    if polling.cancelled() or isinstance(polling.exception(), MemberFenced):
        return Handed([])
    return polling.result()


async def _undone(polling: asyncio.Future[Handed]) -> None:
    """End a poll whose caller has gone; what it brings all the same goes back."""
    polling.cancel()
    await asyncio.wait({polling})
    if not polling.cancelled() and polling.exception() is None and (unheard := polling.result().unheard) is not None:
        unheard()
