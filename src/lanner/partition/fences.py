"""Fences: a group accepts here nothing that is older than what it has accepted before.

A fence is (number of the group, grant), both of which only rise. Where a call comes in, the broker makes a fence of it,
from its copy of the metadata. That copy may be old, and another broker may have led this partition since with a newer
one. So what the partition accepted is kept in its log, and this is what a call is held against: below it, the call is
refused; above it, the record that accepts the call raises the fence.

No fence (None): the copy has never heard of a group with members. A grant of 0: it knows some, but none of this name.
Such calls come from outside; a partition without a fence serves them as if there were none.

This module knows who may act. It refuses to know who should: that is the metadata's.
"""

from __future__ import annotations

from typing import Final

from lanner import features
from lanner.errors import GenerationAhead, MemberFenced, NotSupported, ValidationError
from lanner.limits import COMMIT_METADATA_BYTES_MAX

Fence = tuple[int, int]  # number of the group, grant
NO_FENCE: Final[Fence] = (0, 0)
REFUSED: Final[Fence] = (-1, 1)  # below every fence: a poll under it gets back what it had, and nothing new
OUTSIDE: Final = 0  # the grant of calls that name no member, where the group is not known


def check_fence(group: str, accepted: Fence, asked: Fence | None) -> None:
    """Refuse a call that lies below what this partition has accepted."""
    if (asked or NO_FENCE) >= accepted:
        return
    if asked is None or asked[1] == OUTSIDE:
        raise GenerationAhead(
            f"group {group!r} has had members on this partition that this broker has not heard of yet; try again soon",
            group=group,
        )
    raise MemberFenced(
        f"group {group!r} has accepted a newer owner on this partition: stop working on it, and release it",
        group=group,
    )


def leaves_trace(accepted: Fence, asked: Fence) -> bool:
    """Whether what a poll hands out raises the fence. Where nobody ever was a member, calls from outside do not."""
    return asked > accepted and (asked[1] != OUTSIDE or accepted != NO_FENCE)


def check_metadata(metadata: bytes) -> None:
    if len(metadata) > COMMIT_METADATA_BYTES_MAX:
        raise ValidationError(
            f"a commit may bring {COMMIT_METADATA_BYTES_MAX} bytes along, not {len(metadata)}", field="metadata"
        )


def check_level(feature_level: int) -> None:
    if feature_level < features.GROUPS:
        raise NotSupported(
            f"members of groups need feature level {features.GROUPS}, and the cluster is at {feature_level}: upgrade "
            "every broker, then run `lanner cluster upgrade`"
        )
