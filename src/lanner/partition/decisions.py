"""Deciding: one pass over everything that waits, by the leader alone.

The order is fixed: settles, then what was asked of groups, dead letters and stages, then what time brought about (ended
leases, due retries, ended delays, retention, forgetting), then polls. So a poll sees what the same pass set free, and
no settle loses against an expiry of the same moment. Work per pass is bounded; what is left over is due at once.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from lanner.errors import LannerError
from lanner.model import TopicSettings
from lanner.partition import polling, stage_decisions, upkeep
from lanner.partition.decision_builder import DecisionBuilder
from lanner.partition.requests import (
    AboutStages,
    Answer,
    Claim,
    CommitOffset,
    Decided,
    Discard,
    DropGroup,
    MakeGroup,
    NumberDead,
    Poll,
    Redrive,
    Release,
    Request,
    Seek,
    Settle,
    Tick,
)
from lanner.partition.state import State


def decide(
    state: State,
    requests: Sequence[Request],
    settings: TopicSettings,
    now_ms: int,
    feature_level: int,
    owned: Container[str] = (),
) -> Decided:
    """Everything that waits, in one record, with one answer for each request."""
    decision = DecisionBuilder(state, settings, now_ms, feature_level)
    decision.owned = owned
    answers: list[Answer] = [None] * len(requests)
    polls: list[tuple[int, Poll]] = []
    others: list[tuple[int, Request]] = []
    for number, request in enumerate(requests):
        if not isinstance(request, (Tick, AboutStages)):
            decision.wanted.add(request.group)
        if isinstance(request, Poll):
            polls.append((number, request))
        elif isinstance(request, (Settle, Release)):
            try:
                answers[number] = decision.settle(request)
            except LannerError as error:
                answers[number] = error
        else:
            others.append((number, request))
    for number, request in others:
        answers[number] = _ask(decision, request)
    upkeep.run(decision, any(isinstance(request, Tick) for _, request in others))
    for number, poll in polls:
        answers[number] = polling.answer(decision, poll)
    return decision.finish(answers)


def _ask(decision: DecisionBuilder, request: Request) -> Answer:
    try:
        if isinstance(request, CommitOffset):
            decision.commit(request)
        elif isinstance(request, Claim):
            return decision.claim(request)
        elif isinstance(request, Seek):
            decision.seek(request)
        elif isinstance(request, MakeGroup):
            decision.make(request)
        elif isinstance(request, DropGroup):
            decision.drop(request)
        elif isinstance(request, (Redrive, Discard)):
            return decision.choose_dead(request)
        elif isinstance(request, NumberDead):
            decision.number_dead(request)
        elif isinstance(request, AboutStages):
            return stage_decisions.answer(decision, request)
    except LannerError as error:
        return error
    return None
