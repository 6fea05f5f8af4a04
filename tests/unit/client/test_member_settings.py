"""How somebody is a member: what may be said, and what a join says."""

from __future__ import annotations

from typing import Any

import pytest

from lanner.client.member_settings import NO_MEMBERSHIP, MemberSettings, split_options
from lanner.client.subscriptions import subscription_of
from lanner.errors import ValidationError
from lanner.model import GroupKind

QUEUE, STREAM = GroupKind.QUEUE, GroupKind.STREAM


def test_by_default_and_in_a_shared_group_nothing_is_joined() -> None:
    assert not NO_MEMBERSHIP.check(QUEUE).joins
    assert not MemberSettings(assignor="shared", on_assigned=print).check(QUEUE).joins
    assert MemberSettings(register=True).joins
    assert all(
        MemberSettings(assignor=one).check(STREAM).joins for one in ("sticky", "range", "one of a newer release")
    )


def test_options_are_told_apart() -> None:
    settings, rest = split_options({"assignor": "sticky", "stall_ms": 5, "max_messages": 7})
    assert settings == MemberSettings(assignor="sticky", stall_ms=5)
    assert rest == {"max_messages": 7}


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (QUEUE, {"assignor": ""}, "assignor is ''"),
        (QUEUE, {"assignor": 5}, "assignor is 5: give a text"),
        (STREAM, {"assignor": "shared"}, "readers need partitions of their own"),
        (QUEUE, {"session_ms": 999}, "session_ms is 999"),
        (QUEUE, {"session_ms": 300_001}, "session_ms"),
        (QUEUE, {"stall_ms": 0}, "stall_ms"),
        (QUEUE, {"instance": ""}, "instance"),
        (QUEUE, {"rack": "r" * 201}, "rack"),
        (QUEUE, {"on_lost": 7}, "on_lost is 7: give a function"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: GroupKind, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        MemberSettings(**options).check(kind)


def test_a_join_says_what_was_chosen_and_one_unasked_takes_the_group_as_it_is() -> None:
    wanted = subscription_of(["t", "u*"])
    settings = MemberSettings("range", "web-1", 2_000, "r1")
    call = settings.joining("g", QUEUE, wanted, "latest", "host:1")
    assert (call.group, call.kind, call.topics, call.patterns) == ("g", "queue", ["t"], ["u*"])
    assert (call.assignor, call.instance, call.session_ms, call.rack) == ("range", "web-1", 2_000, "r1")
    assert (call.client, call.start) == ("host:1", "latest")
    for unasked in (NO_MEMBERSHIP, MemberSettings(assignor="shared")):
        assert unasked.joining("g", QUEUE, wanted, "earliest", "").assignor == ""
    assert MemberSettings(assignor="shared", register=True).joining("g", QUEUE, wanted, "earliest", "").assignor == (
        "shared"
    )
    with pytest.raises(ValidationError, match="earliest or latest"):
        settings.joining("g", STREAM, wanted, 17, "")
