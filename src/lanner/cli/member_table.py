"""A group's members as people read them: who has what, who must give what up to whom, and what moved lately."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import typer

from lanner.cli.screen import Screen, age_text, harmless, time_text

if TYPE_CHECKING:
    from lanner.wire.members import GroupMembers, MemberState, PartitionRange, RebalanceState

SHORT: Final = 8  # letters of an id that are shown, as long as these tell members apart; brokers show as many
RANGES_SHOWN: Final = 12
_REBALANCES_SHOWN: Final = 5


def show_members(screen: Screen, group: GroupMembers) -> None:
    typer.echo(heading(group))
    if group.members:
        columns = _columns(group)
        used = [name for name, cells in columns.items() if any(cell != "-" for cell in cells)]
        screen.table(used, zip(*(columns[name] for name in used), strict=True))
    else:
        typer.echo("Nobody is a member now.")
    if group.rebalances:
        typer.echo()
        latest = reversed(group.rebalances[-_REBALANCES_SHOWN:])
        screen.facts({"rebalances": "\n".join(_rebalance(one) for one in latest)})


def heading(group: GroupMembers) -> str:
    """`billing: queue, sticky, generation 41, 3 members, settled`."""
    members = "1 member" if group.count == 1 else f"{group.count:,} members"
    nobody = f", {group.unowned:,} of {group.partitions:,} partitions have no owner yet" if group.unowned else ""
    about = [group.kind, group.assignor, f"generation {group.generation}", members, group.state]
    return harmless(f"{group.group}: {', '.join(about)}{nobody}")


def short_ids(members: Sequence[MemberState], others: Sequence[str] = ()) -> dict[str, str]:
    """Each id cut to as many letters as tell it from every other, but not to fewer than brokers show."""
    ids = sorted({*(member.member_id for member in members), *others})
    size = SHORT
    for before, after in pairwise(ids):
        same = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before))
        size = max(size, same + 1)
    return {one: one if len(one) <= size + 1 else f"{one[:size]}…" for one in ids}


def ranges_text(ranges: Sequence[PartitionRange]) -> str:
    """`orders/0-3, refunds/1`."""
    shown = [
        f"{one.topic}/{one.first}" if one.first == one.last else f"{one.topic}/{one.first}-{one.last}"
        for one in ranges[:RANGES_SHOWN]
    ]
    more = len(ranges) - RANGES_SHOWN
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def _columns(group: GroupMembers) -> dict[str, list[str]]:
    heirs = [hand_over.heir for member in group.members for hand_over in member.revoked]
    short = short_ids(group.members, heirs)
    nothing = "everything" if group.assignor == "shared" else "idle"
    return {
        "member": [short[one.member_id] for one in group.members],
        "instance": [one.instance or "-" for one in group.members],
        "client": [_client(one) for one in group.members],
        "home": [one.home or "-" for one in group.members],
        "heard": [_ago(one.heard_ms) for one in group.members],
        "since": [age_text(one.joined_age_ms / 1000) for one in group.members],
        "held": [ranges_text(one.held) or ("-" if one.revoked else nothing) for one in group.members],
        "revoked": [_revoked(one, short) for one in group.members],
    }


def _client(member: MemberState) -> str:
    door = "" if member.door in ("", "native") else member.door
    return " ".join(part for part in (member.client, f"({door})" if door and member.client else door) if part) or "-"


def _ago(age_ms: int) -> str:
    return "-" if age_ms < 0 else age_text(age_ms / 1000)


def _revoked(member: MemberState, short: dict[str, str]) -> str:
    shown = [
        f"{one.topic}/{one.partition} → {short[one.heir]}"
        + ("" if one.waiting_ms < 0 else f" for {age_text(one.waiting_ms / 1000)}")
        for one in member.revoked[:RANGES_SHOWN]
    ]
    more = len(member.revoked) - RANGES_SHOWN
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "") or "-"


def _rebalance(one: RebalanceState) -> str:
    took = "so far" if one.took_ms < 0 else f"in {one.took_ms / 1000:.2f} s"
    reason = " ".join(one.reason.split())
    return f"{time_text(one.begun_ms)}  {reason}: {one.moved:,} of {one.partitions:,} moved {took}"
