"""The replies of settles as JSON: of acks in a row only the offsets differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from lanner.api.rest.group_shapes import PlainTarget, SettledTarget, SettleReply, SettleTarget
from lanner.api.settling import Outcome, told_of
from lanner.errors import from_wire
from lanner.wire.messages import SettledItem

_encoder: Final = msgspec.json.Encoder()


def acked_reply(targets: Sequence[SettleTarget | PlainTarget], outcomes: Sequence[Outcome]) -> bytes:
    """SettleReply."""
    written = []
    for one in outcomes:
        offsets = one.singles
        if offsets is None:
            return _encoder.encode(settled_reply(targets, told_of(targets, outcomes)))
        head, tail = f'{{"partition":{one.item.partition},"offset":', ',"count":1}'
        written.append(head + f"{tail},{head}".join(map(str, offsets)) + tail)
    count = sum([one.targets for one in outcomes])
    return f'{{"settled":{count},"failed":0,"messages":[{",".join(written)}]}}'.encode("ascii")


def settled_reply(targets: Sequence[SettleTarget | PlainTarget], results: Sequence[SettledItem]) -> SettleReply:
    """What became of each target."""
    return SettleReply(
        settled=sum(result.count for result in results),
        failed=sum(result.code != 0 for result in results),
        messages=[
            SettledTarget(
                partition=target.partition,
                offset=target.offset,
                count=result.count,
                error=from_wire(result.code, "").name if result.code else msgspec.UNSET,
            )
            for target, result in zip(targets, results, strict=True)
        ],
    )
