"""Which case runs over which door, and why not over another: the one place, from which docs/doors.md is made.

A case says which calls it shows (`shows`) or which error it brings about (`brings`). It runs over every door, of a
broker and of a proxy before it, except over those that do not serve a call or cannot bring the error about, each with
its reason here. After a case its door must have asked for what it shows: so what the table says was run, and nothing
that is not in it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from lanner.errors import (
    BadGateway,
    BrokerRemoved,
    ConnectionLost,
    DataDirectoryRefused,
    DeadlineExceeded,
    FenceConflict,
    GroupExpired,
    IdempotencyConflict,
    LannerError,
    MalformedBatch,
    MethodNotAllowed,
    NotInstalled,
    NotLeader,
    NotSupported,
    PermissionDenied,
    ProducerFenced,
    ProducerUnknown,
    ProtocolError,
    SequenceGap,
    SequencePassed,
    ServerError,
    StageExpired,
    StaleIncarnation,
    StorageDamaged,
    StorageFailed,
    TransactionAborted,
    TransactionBusy,
    TransactionUnknown,
    Unauthenticated,
    UnknownRecord,
    UnsupportedVersion,
    catalogue,
)
from lanner.wire.messages import Command
from tests.contract.doors.door import Door
from tests.contract.doors.grpc import GrpcDoor
from tests.contract.doors.native import NativeDoor
from tests.contract.doors.rest import RestDoor

DOORS: Final[Mapping[str, type[Door]]] = {kind.name: kind for kind in (NativeDoor, RestDoor, GrpcDoor)}
ROOT: Final = Path(__file__).parents[3]
DOCUMENT: Final = ROOT / "docs" / "doors.md"
_SECTION: Final = "<!-- begin: {0} -->\n{1}\n<!-- end: {0} -->"

# The calls of the suite, and the command of the table of calls that each comes to.
CALLS: Final[Mapping[str, Command]] = {
    **{name: Command[name.upper()] for name in NativeDoor.served if name not in ("ack", "nack", "extend", "reject")},
    **dict.fromkeys(("ack", "nack", "extend", "reject"), Command.SETTLE),
}

# Calls that no case shows, because only the native door has them, and where they are shown.
_TRANSACTIONS: Final = "a transaction's batches are made by its client: tests/integration/test_client_transactions.py"
NATIVE_ONLY: Final[Mapping[Command, str]] = {
    Command.METADATA: "tells clients who leads what; other doors ask the leader themselves",
    Command.OPEN_PRODUCER: "other doors publish under a producer id of their own",
    Command.BEST_PRIORITY: "tells clients of several brokers which has the most urgent; other doors ask themselves",
    Command.RELEASE: "other doors give back by themselves what their callers did not get",
    Command.FETCH_DEAD: "dead letters as a stream of batches, for Spark; other doors list them",
    Command.MAKE_GROUP: "the broker that takes a join makes its group",
    Command.SCRUB: "asked of one broker about its disk, by `lanner broker scrub`; REST shows progress in /v1/brokers",
    **dict.fromkeys(
        (
            Command.STAGE,
            Command.PREPARE,
            Command.DISCARD_STAGES,
            Command.BEGIN,
            Command.END,
            Command.LOOK,
            Command.CLAIM,
            Command.LIST_TRANSACTIONS,
            Command.FORGET,
        ),
        _TRANSACTIONS,
    ),
}

# Why a door does not serve a call that others serve.
NOT_SERVED: Final[Mapping[tuple[str, str], str]] = {}

_BATCHES: Final = "batches are made and numbered by clients of the native door only"
_LATER: Final = "there are no credentials and no access rules yet"
_OWN: Final = "raised where it happens, and crosses no door"
_CLASS: Final = "only the kinds below it are raised"
_HOP: Final = "needs several brokers: tests/unit/broker/test_calls.py"
_LATE: Final = "needs a broker that does not answer another: tests/unit/broker/links/test_peers.py"
_ROTTEN: Final = "needs a disk that lost what it held: tests/integration/test_damage.py"
_ABORTED: Final = "needs a transaction that fails under way: tests/integration/test_client_transactions.py"
_BUSY: Final = "needs a commit that is under way: tests/integration/test_staging_desk.py"

# Errors that no door brings about in the suite: everywhere the same reason. What it cites shows the error by name.
BROUGHT_NOWHERE: Final[Mapping[type[LannerError], str]] = {
    LannerError: _CLASS,
    Unauthenticated: _LATER,
    BrokerRemoved: "told between brokers",
    NotLeader: _HOP,
    BadGateway: _HOP,
    DeadlineExceeded: _LATE,
    ConnectionLost: _OWN,
    ServerError: "needs a fault in a broker's own code: tests/unit/api/rest/test_app.py",
    StorageDamaged: _ROTTEN,
    StorageFailed: "needs a disk that fails: tests/integration/test_bad_disk.py",
    UnknownRecord: "needs a record of a later release: tests/unit/broker/test_outages.py",
    DataDirectoryRefused: _OWN,
    NotInstalled: _OWN,
    NotSupported: "needs a cluster below its feature level: tests/unit/broker/coordination/test_memberships.py",
    StageExpired: _ABORTED,
    TransactionAborted: _ABORTED,
    TransactionBusy: _BUSY,
}

# Errors that only some doors bring about, and why others do not.
NOT_BROUGHT: Final[Mapping[type[LannerError], Mapping[str, str]]] = {
    **{
        kind: dict.fromkeys(("REST", "gRPC"), _BATCHES)
        for kind in (MalformedBatch, ProducerFenced, ProducerUnknown, SequenceGap)
    },
    **{
        kind: dict.fromkeys(("REST", "gRPC"), "transactions are for clients of the native door")
        for kind in (FenceConflict, SequencePassed, TransactionUnknown)
    },
    IdempotencyConflict: {"native": "a batch is repeated under its producer's sequence; its client compares"},
    StaleIncarnation: dict.fromkeys(("REST", "gRPC"), "callers name a topic, never one incarnation of it"),
    GroupExpired: dict.fromkeys(("REST", "gRPC"), "callers cannot say that they have committed before"),
    ProtocolError: {"REST": "a request that is no HTTP is a ValidationError", "gRPC": "gRPC's own errors"},
    UnsupportedVersion: dict.fromkeys(("REST", "gRPC"), "versions are in the path and in the service's name"),
    MethodNotAllowed: {
        "native": "an unknown command is a ProtocolError",
        "gRPC": "an unknown method is gRPC's own UNIMPLEMENTED",
    },
    PermissionDenied: dict.fromkeys(("native", "gRPC"), f"REST refuses pages of other sites; {_LATER}"),
}


class Case(NamedTuple):
    """What the fixture `door` makes of a case."""

    door: str
    shown: tuple[str, ...]
    place: str = "broker"  # or "proxy": the doors of a proxy in front of the same broker


_shown: defaultdict[str, set[str]] = defaultdict(set)  # call → doors over which some case shows it
_brought: defaultdict[type[LannerError], set[str]] = defaultdict(set)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def shows(*calls: str) -> Callable[[FunctionT], FunctionT]:
    """A case that shows these calls, over every door that serves them all."""
    doors = [name for name, kind in DOORS.items() if set(calls) <= set(kind.served)]
    for call in calls:
        _shown[call].update(doors)
    return _over(doors, calls)


def brings(error: type[LannerError]) -> Callable[[FunctionT], FunctionT]:
    """A case that brings an error about, over every door that can."""
    doors = [name for name in DOORS if name not in NOT_BROUGHT.get(error, {})]
    _brought[error].update(doors)
    return _over(doors, ())


def everywhere() -> Callable[[FunctionT], FunctionT]:
    """A case about no call in particular."""
    return _over(list(DOORS), ())


def _over(doors: list[str], calls: tuple[str, ...]) -> Callable[[FunctionT], FunctionT]:
    cases = [
        *(pytest.param(Case(name, calls), id=name) for name in doors),
        *(pytest.param(Case(name, calls, "proxy"), id=f"{name} by proxy") for name in doors),
    ]
    return pytest.mark.parametrize("door", cases, indirect=True)


# ------------------------------------------------------------------ what follows from it


def gaps() -> list[str]:
    """What is neither shown nor excused, and what is excused and shown all the same."""
    found = [f"no case shows {call}" for call in CALLS if not _shown[call]]
    for call in CALLS:
        for name, kind in DOORS.items():
            if (call in kind.served) == ((name, call) in NOT_SERVED):
                found.append(f"{name} must serve {call}, or say why not: one of the two")
    for error in catalogue().values():
        if (error in BROUGHT_NOWHERE) == bool(_brought[error]):
            found.append(f"{error.__name__} must be brought about, or excused: one of the two")
    return found


def false_reasons() -> list[str]:
    """Tests that a reason cites, and that are not there or do not name the error."""
    reasons = [*BROUGHT_NOWHERE.items()]
    reasons += [(error, reason) for error, doors in NOT_BROUGHT.items() for reason in doors.values()]
    found = []
    for error, reason in reasons:
        for path in re.findall(r"tests/[a-z_/.]+", reason):
            named = ROOT / path
            if not named.is_file() or not re.search(rf"\b{error.__name__}\b", named.read_text(encoding="utf-8")):
                found.append(f"{path} shows no {error.__name__}")
    return found


def sections() -> dict[str, str]:
    """The parts of the document that are made here, by name."""
    return {"calls": "\n".join(_call_rows()), "errors": "\n".join(_error_rows())}


def _call_rows() -> list[str]:
    rows = [f"| call | {' | '.join(DOORS)} |", f"|---|{'---|' * len(DOORS)}"]
    reasons: list[str] = []
    for call in CALLS:
        cells = []
        for name, kind in DOORS.items():
            if name in _shown[call]:
                cells.append(f"`{kind.served[call]}`")
            else:
                cells.append(_note(reasons, NOT_SERVED[name, call]))
        rows.append(f"| {call.replace('_', ' ')} | {' | '.join(cells)} |")
    for command, reason in NATIVE_ONLY.items():
        others = " | ".join([_note(reasons, reason)] * (len(DOORS) - 1))
        rows.append(f"| {command.name.lower().replace('_', ' ')} | `{command.name}` | {others} |")
    return [*rows, "", *_notes(reasons)]


def _error_rows() -> list[str]:
    rows = [f"| error | {' | '.join(DOORS)} |", f"|---|{'---|' * len(DOORS)}"]
    reasons: list[str] = []
    for _, error in sorted(catalogue().items()):
        cells = []
        for name in DOORS:
            if name in _brought[error]:
                cells.append(_as_told(name, error))
            else:
                reason = BROUGHT_NOWHERE[error] if error in BROUGHT_NOWHERE else NOT_BROUGHT[error][name]
                cells.append(_note(reasons, reason))
        rows.append(f"| {error.__name__} | {' | '.join(cells)} |")
    return [*rows, "", *_notes(reasons)]


def _as_told(door: str, error: type[LannerError]) -> str:
    return str({"native": error.code, "REST": error.http_status, "gRPC": error.grpc_status}[door])


def _note(reasons: list[str], reason: str) -> str:
    if reason not in reasons:
        reasons.append(reason)
    return f"no ({reasons.index(reason) + 1})"


def _notes(reasons: list[str]) -> list[str]:
    return [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]


def document(text: str) -> str:
    """The document with its made parts as they should be."""
    for name, made in sections().items():
        before, begin, rest = text.partition(f"<!-- begin: {name} -->\n")
        _, end, after = rest.partition(f"\n<!-- end: {name} -->")
        assert begin and end, f"{DOCUMENT.name} has no place for {name}"
        text = before + _SECTION.format(name, made) + after
    return text
