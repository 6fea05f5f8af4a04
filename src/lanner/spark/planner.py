"""The driver's side of a read: which topics there are, where a query begins, and how far its next batch goes.

A planner lives as long as its query, in a process of its own that Spark starts; it holds one connection. It decides
with the pure parts (`progress`, `admission`, `offsets`) and acts through a `TopicLog`.

Rules:
- An error here would end the query. What may pass is therefore logged, and answered with "nothing new": Spark asks
  again. What does not pass (a topic recreated, messages lost) is raised, unless the options say to go on.
- While there is nothing new it waits for news instead of being asked a hundred times a second. Spark asks the sources
  of a query one after the other, so an idle one delays the others by that wait: it is short once there are others.
- The offset where a batch begins is one that Spark has finished: it is what the group is told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from lanner.errors import GroupNotFound, LannerError, OffsetOutOfRange, PartitionNotFound
from lanner.spark.admission import Patience, backlog, prorated, shares
from lanner.spark.filters import Narrowing
from lanner.spark.log import TopicLog
from lanner.spark.offsets import LATEST, Span, Topics, check_coverage, located, place, resolve
from lanner.spark.options import ReadOptions
from lanner.spark.progress import (
    Loss,
    Progress,
    TopicProgress,
    beginning,
    from_json,
    group_of,
    reachable,
    spans_between,
    to_json,
    with_ends,
)

_log: Final = logging.getLogger("lanner.spark")

WAIT_MS: Final = 500  # for news; a query that is stopped ends so much later at most
SHARED_WAIT_MS: Final = 50  # the same in a query with other sources: they are asked only after this wait
_PAUSE_MS: Final = 100
_NAMES_S: Final = 1.0  # so often a pattern is looked up anew
_LAST_COMMIT_S: Final = 2.0


def plan_batch(options: ReadOptions, log: TopicLog, narrowing: Narrowing) -> list[Span]:
    """What a batch read covers: fixed now."""
    names = log.names(options.chosen.pattern) if options.chosen.pattern else list(options.chosen.names)
    moments: dict[tuple[str, int, int], int] = {}
    for bound in (options.starting, options.ending, *narrowing.times()):
        moments |= log.moments(bound, names)
    topics = chosen_partitions(options, log.held(names))
    starting = located(options.starting, topics, moments, options.latest_when_late)
    spans = resolve(starting, located(options.ending, topics, moments), topics)
    return narrowing.spans(spans, moments)


def chosen_partitions(options: ReadOptions, topics: Topics, *, missing_ok: bool = False) -> Topics:
    """With `assign` only some partitions; one that is not there is an error."""
    assigned = options.chosen.partitions
    if assigned is None:
        return topics
    found = {}
    for topic, held in topics.items():
        unknown = [one for one in assigned[topic] if one not in held]
        if unknown and not missing_ok:
            raise PartitionNotFound(
                f"option assign: {topic} has no partition {unknown[0]}: there are {len(held)}, counted from 0",
                topic=topic,
                partition=unknown[0],
            )
        found[topic] = {one: held[one] for one in assigned[topic] if one in held}
    return found


class StreamPlanner:
    """Answers what Spark asks of one streaming query."""

    def __init__(self, options: ReadOptions, log: TopicLog, now: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._log = log
        self._now = now
        self._names: list[str] = []
        self._names_at = -_NAMES_S
        self._target: Topics | None = None  # what was there when an AvailableNow query began
        self._patience: Patience | None = None
        if options.min_offsets is not None:
            self._patience = Patience(options.min_offsets, options.max_delay_ms)
        self._seen: Progress = {}  # how far the topics went when they were last looked at
        self._published: dict[str, TopicProgress] = {}
        self._commits: list[Future[None]] = []
        self._group_checked = False
        self._told: set[Loss] = set()
        self._others_at_work = False
        self._wait_ms = WAIT_MS

    def note_others(self) -> None:
        """A batch of the query had nothing of this source: it has others, and they may have more to do at once."""
        self._others_at_work = True
        self._wait_ms = SHARED_WAIT_MS

    # ------------------------------------------------------------------ where it begins

    def begin(self) -> dict[str, Any]:
        """Where a new query begins. With a group, `latest` is what it was when this was first asked."""
        options = self._options
        names = self._chosen_names()
        moments = self._log.moments(options.starting, names)
        topics = chosen_partitions(options, self._log.held(names))
        starting = located(options.starting, topics, moments, options.latest_when_late)
        check_coverage(starting, topics)
        offsets = {
            (topic, partition): place(starting, topic, partition, held)
            for topic, partitions in topics.items()
            for partition, held in partitions.items()
        }
        if options.group:
            for topic, partitions in topics.items():
                if starting.everywhere == LATEST:
                    pinned = self._log.committed(options.group, topic)
                    offsets |= {(topic, one): offset for one, offset in pinned.items() if one in partitions}
                self._log.commit(options.group, topic, {one: offsets[topic, one] for one in partitions})
        self._group_checked = True
        return self._written(beginning(topics, offsets))

    def prepare_available_now(self) -> None:
        """From now on, nothing that comes later is there."""
        self._target = self._look()

    # ------------------------------------------------------------------ how far the next batch goes

    def next_end(
        self, given: dict[str, Any], rows_max: int | None, bytes_max: int | None, *, all_of_it: bool
    ) -> dict[str, Any]:
        """Where a batch that begins at the given offset ends; the same offset when there is nothing to do."""
        start = from_json(given, self._options.dead_letters_of)
        waits = not self._others_at_work and self._target is None
        self._others_at_work = False
        while True:
            try:
                self._check_group(given, start)
                self.publish(start)
                end = self._end(start, rows_max, bytes_max, all_of_it)
                if end == start and waits:
                    self._log.news(_ends(self._seen), self._wait_ms, self._options.lanes)
                    end = self._end(start, rows_max, bytes_max, all_of_it)
                same = end == start and group_of(given) == self._options.group
                return given if same else self._written(end)
            except LannerError as error:
                if not error.retryable:
                    raise
                _log.warning("nothing new can be learnt at present: %s", error.message)
                time.sleep(_PAUSE_MS / 1_000)
                if self._target is None:  # else "nothing new" would be the end
                    return given

    def _end(self, start: Progress, rows_max: int | None, bytes_max: int | None, all_of_it: bool) -> Progress:
        topics = self._look() if self._target is None else self._target
        options = self._options
        end, losses = reachable(start, topics, holes_are_losses=not options.dead_letters_of, names=options.chosen.has)
        self._seen = end
        self._report(losses)
        spans = [_still_there(span, topics) for span in spans_between(start, end)]
        if self._patience is not None and not all_of_it and self._target is None:
            rows = backlog(spans)
            if rows and not self._patience.is_enough(rows, self._now() * 1_000):
                time.sleep(_PAUSE_MS / 1_000)
                spans = []
        if rows_max is not None:
            spans = prorated(spans, rows_max)
        if bytes_max is not None and spans:
            spans = self._log.reach(shares(spans, bytes_max), self._options.lanes)
        return with_ends(start, end, spans)

    def latest(self) -> dict[str, Any] | None:
        """How far the topics went when they were last looked at, for Spark's own figures."""
        return self._written(self._seen) if self._seen else None

    def _look(self) -> Topics:
        topics = self._log.held(self._chosen_names(), missing_ok=True)
        return chosen_partitions(self._options, topics, missing_ok=True)

    def _chosen_names(self) -> list[str]:
        pattern = self._options.chosen.pattern
        if not pattern:
            return list(self._options.chosen.names)
        if self._now() - self._names_at >= _NAMES_S:
            self._names = self._log.names(pattern)
            self._names_at = self._now()
        return self._names

    def _report(self, losses: list[Loss]) -> None:
        if losses and self._options.fail_on_data_loss:
            raise OffsetOutOfRange(
                "; ".join(str(loss) for loss in losses[:5]) + ". To go on with what is there, say "
                '.option("failOnDataLoss", "false"); to begin anew, use another checkpointLocation',
            )
        for loss in losses:
            if loss not in self._told:
                self._told.add(loss)
                _log.warning("%s", loss)

    def _written(self, progress: Progress) -> dict[str, Any]:
        return to_json(progress, self._options.group, self._options.dead_letters_of)

    # ------------------------------------------------------------------ the group

    def publish(self, progress: Progress) -> None:
        """Tell the group how far the query is, without waiting. It never goes back."""
        if not self._options.group:
            return
        for topic, one in progress.items():
            known = self._published.get(topic)
            if known is None or known.incarnation != one.incarnation:
                known = TopicProgress(one.incarnation, {})
            news = {part: offset for part, offset in one.offsets.items() if offset > known.offsets.get(part, -1)}
            if news:
                self._published[topic] = TopicProgress(one.incarnation, {**known.offsets, **news})
                commit = self._log.start_commit(self._options.group, topic, news)
                commit.add_done_callback(_note_failure)
                self._commits.append(commit)
        self._commits = [commit for commit in self._commits if not commit.done()]

    def _check_group(self, given: dict[str, Any], start: Progress) -> None:
        """A query that goes on from its checkpoint finds its group as it left it, or says what can be done."""
        group = self._options.group
        if self._group_checked:
            return
        if group and start and group_of(given) == group and not any(self._log.committed(group, one) for one in start):
            raise GroupNotFound(
                f"the query's group {group!r} is gone: it expired or was dropped, and what it kept from retention may "
                "be gone too. To go on from the checkpoint with what is there, give another name by "
                '.option("group", ...); to begin anew, use another checkpointLocation',
                group=group,
            )
        self._group_checked = True

    def close(self) -> None:
        for commit in self._commits:
            try:
                commit.result(_LAST_COMMIT_S)
            except Exception:
                break
        self._log.close()


def _still_there(span: Span, topics: Topics) -> Span:
    """Without what is gone at its beginning: that takes nothing of a limit."""
    first_offset = topics[span.topic][span.partition].first_offset
    return span._replace(start_offset=min(max(span.start_offset, first_offset), span.end_offset))


def _ends(progress: Progress) -> list[tuple[str, int, int]]:
    return [(topic, part, offset) for topic, one in progress.items() for part, offset in one.offsets.items()]


def _note_failure(commit: Future[None]) -> None:
    error = None if commit.cancelled() else commit.exception()
    if error is not None:
        _log.warning("the query's progress could not be told to its group: %s", error)
