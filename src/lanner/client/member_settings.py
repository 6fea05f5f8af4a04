"""How a consumer or reader is a member of its group, as the application said it; checked before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lanner import limits
from lanner.client.arguments import check_bound
from lanner.client.member_ports import Callback, Callbacks
from lanner.client.subscriptions import Subscription
from lanner.errors import ValidationError
from lanner.model import GroupKind
from lanner.wire.members import JoinGroup

SHARED: Final = "shared"
STALL_MS: Final = 300_000
_STARTS: Final = ("earliest", "latest")


class MemberSettings(NamedTuple):
    """The defaults are those of a consumer that has joined nothing."""

    assignor: str | None = None
    instance: str | None = None
    session_ms: int | None = None
    rack: str | None = None
    register: bool = False
    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None
    stall_ms: int = STALL_MS

    @property
    def joins(self) -> bool:
        """Whether to become a member before the first message is asked for."""
        return self.register or self.assignor not in (None, SHARED)

    @property
    def callbacks(self) -> Callbacks:
        return Callbacks(self.on_assigned, self.on_revoked, self.on_lost)

    def check(self, kind: GroupKind) -> MemberSettings:
        if self.assignor == SHARED and kind is GroupKind.STREAM:
            raise ValidationError(
                f"assignor is {SHARED!r}, which is for consumers: readers need partitions of their own",
                field="assignor",
            )
        for name, value in (("assignor", self.assignor), ("instance", self.instance), ("rack", self.rack)):
            if value is not None and (not isinstance(value, str) or not 0 < len(value) <= limits.NAME_LENGTH_MAX):
                raise ValidationError(
                    f"{name} is {value!r}: give a text of 1 to {limits.NAME_LENGTH_MAX} characters", field=name
                )
        if self.session_ms is not None:
            check_bound("session_ms", self.session_ms, limits.SESSION_MS_MIN, limits.SESSION_MS_MAX)
        check_bound("stall_ms", self.stall_ms, 1, limits.DELAY_MS_MAX)
        for name, callback in zip(Callbacks._fields, self.callbacks, strict=True):
            if callback is not None and not callable(callback):
                raise ValidationError(f"{name} is {callback!r}: give a function", field=name)
        return self

    def joining(self, group: str, kind: GroupKind, wanted: Subscription, start: object, client: str) -> JoinGroup:
        """What every join of this member says, but for its id."""
        if start not in _STARTS:
            raise ValidationError(
                f"start is {start!r}: a group's members begin at earliest or latest, and go on where it has committed",
                field="start",
            )
        return JoinGroup(
            group,
            kind.value,
            "-",
            list(wanted.topics),
            list(wanted.patterns),
            assignor=self.assignor or "" if self.joins else "",  # unasked it takes the group's
            instance=self.instance or "",
            session_ms=round(self.session_ms or 0),
            rack=self.rack or "",
            client=client[: limits.NAME_LENGTH_MAX],
            start=str(start),
        )


NO_MEMBERSHIP: Final = MemberSettings()


def split_options(options: Mapping[str, Any]) -> tuple[MemberSettings, dict[str, Any]]:
    """What is said about membership, and the other options."""
    mine = {name: value for name, value in options.items() if name in MemberSettings._fields}
    return MemberSettings(**mine), {name: value for name, value in options.items() if name not in mine}
