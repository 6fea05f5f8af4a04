"""Bugs on purpose: each is one small change of the real code, and the simulator must catch it.

A checker that has never caught anything proves nothing. So the mistakes that queues and logs are known for are kept
here, by name, as patches of the rooms they would be made in; those that it takes several brokers to make are in
`planted_cluster`. `planted(name)` puts one in for the length of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from lanner.broker.desks import fitting
from lanner.broker.replicas.engine import Engine
from lanner.broker.wall_clock import FollowingClock
from lanner.cluster import topics
from lanner.ledger import Commit, inspection, seals
from lanner.ledger import journal as ledger_journal
from lanner.ledger import replay as ledger_replay
from lanner.ledger import tails as ledger_tails
from lanner.ledger.holdings import Holdings
from lanner.ledger.ledger import Ledger
from lanner.ledger.ports import Files
from lanner.ledger.records import RecordReader
from lanner.ledger.rows import JOURNAL_KEY, FileState, decode_journal, encode_journal
from lanner.ledger.tails import Tail
from lanner.partition import polling, upkeep
from lanner.partition.decision_builder import DecisionBuilder
from lanner.partition.groups import Group
from lanner.partition.memory import SettleMemory
from lanner.partition.places import LaneProgress, Standing
from lanner.partition.requests import CommitOffset, Release, Settle
from lanner.testing.planted_cluster import CLUSTER_PLANTS
from lanner.testing.planted_staged import STAGED_CLUSTER_PLANTS, STAGED_PLANTS
from lanner.testing.plants import Patch, Plant
from lanner.testing.queue_model import Violation


def _skip_sync(patch: Patch) -> None:
    def perform(commit: Commit, files: Files) -> None:
        if commit.create is not None:
            files.create(*commit.create)
            commit.create = None
        files.write(commit.file, commit.offset, commit.buffers)

    patch(ledger_journal, "perform", perform)


def _answer_before_commit(patch: Patch) -> None:
    pump, committed = Engine.pump, Engine.committed

    def pump_and_answer(engine: Engine) -> Commit | None:
        commit = pump(engine)
        if commit is not None:
            committed(engine, commit)
        return commit

    def ignore(engine: Engine, commit: Commit) -> None:
        """Everybody has been told already."""

    patch(Engine, "pump", pump_and_answer)
    patch(Engine, "committed", ignore)


def _retry_last(patch: Patch) -> None:
    take_retries = polling._Taking._take_retries

    def take(taking: Any, lane: int) -> Any:
        lanes = taking.decision.state.lanes
        if any(taking.view.nexts[lower] < lanes[lower].end for lower in range(lane)):
            return True  # as if it were the least urgent of all
        return take_retries(taking, lane)

    patch(polling._Taking, "_take_retries", take)


def _lease_twice(patch: Patch) -> None:
    end = upkeep._end_leases_and_waits

    def end_too_early(decision: DecisionBuilder) -> None:
        decision.now_ms += 120
        try:
            end(decision)
        finally:
            decision.now_ms -= 120

    patch(upkeep, "_end_leases_and_waits", end_too_early)


def _accept_stale(patch: Patch) -> None:
    settle = DecisionBuilder.settle

    def settle_for_any_holder(decision: DecisionBuilder, request: Settle | Release) -> Any:
        leases = decision.queue_view(request.group).group.leases
        items = []
        for token, first_offset, count, kind, delay_ms, reason in request.items:
            if token not in leases:
                holders = [each for each in leases.values() if each.mask_between(first_offset, 1) & each.live]
                token = holders[0].token if holders else token
            items.append((token, first_offset, count, kind, delay_ms, reason))
        return settle(decision, request._replace(items=items))

    patch(DecisionBuilder, "settle", settle_for_any_holder)


def _forget_pinned(patch: Patch) -> None:
    held_mask = LaneProgress.held_mask

    def held_but_not_dead(progress: LaneProgress, place: int, count: int) -> int:
        mask = held_mask(progress, place, count)
        for at in range(count):
            if progress.entry_at(place + at, Standing.DEAD) is not None:
                mask &= ~(1 << at)
        return mask

    patch(LaneProgress, "held_mask", held_but_not_dead)


def _save_ahead(patch: Patch) -> None:
    begin_save = Ledger.begin_save

    def save_what_is_on_its_way(ledger: Ledger) -> Any:
        save = begin_save(ledger)
        commit = ledger._journal.in_flight
        if commit is not None:
            row = save.taken[JOURNAL_KEY]
            assert row is not None
            save.taken[JOURNAL_KEY] = encode_journal(decode_journal(row)._replace(position=commit.end))
        return save

    patch(Ledger, "begin_save", save_what_is_on_its_way)


def _drop_live(patch: Patch) -> None:
    dead_files, credit = Holdings.dead_files, Holdings.credit

    def nearly_dead_files(holdings: Holdings, position_file: int) -> list[int]:
        nearly = [
            info.file_id
            for info in holdings.files.values()
            if info.live * 4 < info.size and info.state is FileState.SEALED and info.file_id < position_file
        ]
        return sorted({*dead_files(holdings, position_file), *nearly})

    def credit_what_is_there(holdings: Holdings, set_id: int, generation: int, file_id: int, change: int) -> None:
        if file_id in holdings.files:
            credit(holdings, set_id, generation, file_id, change)

    patch(Holdings, "dead_files", nearly_dead_files)
    patch(Holdings, "credit", credit_what_is_there)


def _deliver_early(patch: Patch) -> None:
    run = upkeep.run

    def run_ahead(decision: DecisionBuilder, *rest: Any) -> None:
        first_ms = decision.state.delayed.first_ms()
        if first_ms is not None and decision.now_ms < first_ms <= decision.now_ms + 150:
            decision.now_ms += 150
            upkeep._end_delays(decision)
            decision.now_ms -= 150
        run(decision, *rest)

    patch(upkeep, "run", run_ahead)


def _give_back_uncounted(patch: Patch) -> None:
    give_back = Group.give_back

    def forget_attempt(
        group: Group, token: int, mask: int, standing: Any, time_ms: int, reason: str, uncount: bool, asked: int = 0
    ) -> None:
        give_back(group, token, mask, standing, time_ms, reason, uncount or standing is Standing.WAITING, asked)

    patch(Group, "give_back", forget_attempt)


def _forget_settles(patch: Patch) -> None:
    patch(SettleMemory, "remember", lambda memory, lease, now_ms: None)


def _ignore_seals(patch: Patch) -> None:
    def anything(key: bytes, row: bytes) -> bool:
        return True

    patch(seals, "matches", anything)
    patch(inspection, "matches", anything)


def _cut_damaged(patch: Patch) -> None:
    judge = ledger_tails.judge

    def take_for_torn(reader: RecordReader, offset: int) -> Tail:
        return Tail.TORN if judge(reader, offset) is Tail.DAMAGED else judge(reader, offset)

    patch(ledger_tails, "judge", take_for_torn)


def _trust_the_cache(patch: Patch) -> None:
    patch(ledger_replay, "_write_again", lambda files, record: None)


def _keep_oversized(patch: Patch) -> None:
    patch(fitting, "release_of", lambda group, token, leases: None)


def _repeat_commits(patch: Patch) -> None:
    commit = DecisionBuilder.commit

    def commit_for_any_reader(decision: DecisionBuilder, request: CommitOffset) -> None:
        commit(decision, request._replace(reader="", sequence=-1))

    patch(DecisionBuilder, "commit", commit_for_any_reader)


def _create_by_clock(patch: Patch) -> None:
    create = topics.create_topic

    def create_in_this_moment(state: Any, command: Any) -> Any:
        existing = state.topics.get(command.name)
        mine = existing is not None and existing.created_ms == command.created_ms
        return existing if mine else create(state, command)

    patch(topics, "create_topic", create_in_this_moment)


_LOST: Final = ("lost write", "committed entry lost", "committed entry changed", "broker refuses its own disk")


def _believe_the_clock(patch: Patch) -> None:
    patch(FollowingClock, "now_ms", lambda clock: clock._wall_ms())


BROKER_PLANTS: Final[dict[str, Plant]] = {
    "skipped-sync": Plant("a commit is written and never synced", (*_LOST, "message cannot be read"), _skip_sync),
    "ack-before-commit": Plant(
        "callers are answered before the disk is", (*_LOST, "message cannot be read"), _answer_before_commit
    ),
    "retry-loses-priority": Plant("a retry is served when nothing fresh is left", ("priority inversion",), _retry_last),
    "lease-granted-twice": Plant("a lease is given to somebody else before it ends", ("leased twice",), _lease_twice),
    "stale-lease-accepted": Plant(
        "a settle with an old token settles the new lease", ("stale lease accepted",), _accept_stale
    ),
    "settle-forgotten": Plant(
        "what settles were answered is forgotten with their lease", ("settle forgotten",), _forget_settles
    ),
    "commit-repeated": Plant("a commit that is repeated counts again", ("floor went back",), _repeat_commits),
    "create-by-clock": Plant(
        "a create takes a topic of the same millisecond for its own", ("topic made twice",), _create_by_clock
    ),
    "pinned-dead-letter-removed": Plant(
        "retention takes dead letters along",
        ("invariant broken", "message cannot be read", "lost write"),
        _forget_pinned,
    ),
    "saved-point-ahead": Plant("a save claims a journal record that is still on its way", _LOST, _save_ahead),
    "live-segment-dropped": Plant(
        "a file goes although something in it lives",
        ("message cannot be read", "broker refuses its own disk"),
        _drop_live,
    ),
    "row-checksum-ignored": Plant("rows are not held against their checksums", ("damage accepted",), _ignore_seals),
    "damaged-tail-cut": Plant(
        "a last record that was written whole and is damaged is cut", ("damage accepted",), _cut_damaged
    ),
    "replay-not-synced": Plant(
        "what a start has replayed counts as durable, and may be in the system's cache only",
        (*_LOST, "message cannot be read"),
        _trust_the_cache,
    ),
    "delayed-delivered-early": Plant("a delay ends before its time", ("early delivery",), _deliver_early),
    "attempt-not-counted": Plant(
        "a nack does not count the delivery", ("delivery count went back",), _give_back_uncounted
    ),
    "clock-believed": Plant("a step of the wall clock is a step of time", ("time jumped",), _believe_the_clock),
    "oversized-reply-kept": Plant(
        "leases of a reply that does not fit, or cannot be sent, are kept", ("died unseen",), _keep_oversized
    ),
}

PLANTS: Final = {**BROKER_PLANTS, **CLUSTER_PLANTS, **STAGED_PLANTS, **STAGED_CLUSTER_PLANTS}


def catches(name: str, violations: Iterable[Violation]) -> bool:
    """Whether this is how the bug of this name should be found."""
    rules = PLANTS[name].caught_by
    return any(violation.rule in rules for violation in violations)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run a block with one bug in place. An empty name: with none."""
    undo: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, attribute: str, value: Any) -> None:
        undo.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, value)

    try:
        if name:
            PLANTS[name].put(patch)
        yield
    finally:
        for owner, attribute, value in reversed(undo):
            setattr(owner, attribute, value)
