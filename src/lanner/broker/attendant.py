"""The attendant: acts on the outcomes of tries, for the partitions that are led on this broker.

It compares what a partition has prepared with what this broker's copy of the metadata says of it. What follows is one
table, and the next leader finds the same rows and does the same:

    prepared here?   the copy says             the attendant
    yes              preparing                 reports *prepared* to the conductor
    yes              committed                 has the partition publish, until nothing is left
    yes              nothing, and has heard    has the partition withdraw: what is in no row is aborted
    no               committed, acted on       reports *done*: its vote made the commit, so it has published
    no               preparing, and refused    reports *refused*, for as long as this broker remembers
    no               anything else             nothing

*Acted on* means that the partition has acted on metadata as late as the commit, as publishing makes it do. That nothing
is prepared is not enough: a leader that was deposed and does not know it yet may not have what its successor prepared,
and its *done* would have the try forgotten before anybody published it.

A copy that is older than what the partition has acted on before says nothing: it is waited for. A report is soft. It
comes again until its effect shows in the copy, so it does not matter who hears it, or whether anybody does.

It speaks to nobody: reports are handed out, and partitions are asked through a port. Time is counted in ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lanner import limits
from lanner.cluster import Cluster
from lanner.wire.staging import ReportItem, ReportKind

LOOK_TICKS: Final = 20  # every partition is looked at once in so many ticks, for what nobody has told
REPORT_TICKS: Final = 40  # a report whose effect is not seen is handed out again


class Held(Protocol):
    """What the attendant looks at of a partition."""

    @property
    def metadata_index(self) -> int: ...
    def prepared(self) -> Mapping[int, object]: ...


class Partitions(Protocol):
    """The partitions of this broker, as the attendant reaches them."""

    def held(self) -> Iterable[int]:
        """Return the sets that have a replica here."""

    def partition(self, set_id: int) -> Held | None:
        """Return a partition that is led here; None for one that is not, or may not decide yet."""

    def publish(self, set_id: int, token: int, metadata_index: int, told: Callable[[bool], None]) -> None:
        """Publish the next part of what is prepared; `told` hears once whether that was done."""

    def withdraw(self, set_id: int, token: int, metadata_index: int, told: Callable[[bool], None]) -> None:
        """Take back what is prepared; `told` hears once whether that was done."""


@dataclass(slots=True)
class _Word:
    """What is said of one try on one partition, and when it is said again."""

    item: ReportItem
    due_tick: int


class Attendant:
    """Acts on the outcomes of tries, for the partitions that one broker leads."""

    def __init__(self, partitions: Partitions) -> None:
        self.said_again = 0
        self._partitions = partitions
        self._ticks = 0
        self._copy_index = 0
        self._sets_of: dict[int, tuple[int, ...]] = {}  # the tries of the copy, as they were looked at last
        self._words: dict[int, dict[int, _Word]] = {}  # set → token → what is said
        self._refusals: dict[int, dict[int, str]] = {}  # set → token → why
        self._asked: set[tuple[int, int]] = set()  # (set, token) whose partition has yet to answer
        self._touched: dict[int, None] = {}  # sets to be looked at
        self._behind: dict[int, None] = {}  # sets for which the copy is too old
        self._reports: list[ReportItem] = []
        self._round: list[int] = []  # sets that have yet to be looked at

    # ------------------------------------------------------------------ what it is told

    def touch(self, set_id: int) -> None:
        """Look at a set with the next `follow`: what is prepared there may have changed."""
        self._touched[set_id] = None

    def refuse(self, token: int, set_id: int, reason: str) -> None:
        """Remember that a partition which is led here cannot prepare a try."""
        self._refusals.setdefault(set_id, {})[token] = reason[: limits.REASON_LENGTH_MAX]
        self.touch(set_id)

    def say_again(self) -> None:
        """Report everything again: another broker conducts now, and has heard nothing yet."""
        for words in self._words.values():
            for word in words.values():
                word.due_tick = self._ticks
        self._repeat()

    # ------------------------------------------------------------------ what it does

    def tick(self) -> None:
        phase = self._ticks % LOOK_TICKS
        self._ticks += 1
        if phase == 0:
            self._round = self._all()
        share = -(-len(self._round) // (LOOK_TICKS - phase))
        self._touched.update(dict.fromkeys(self._round[:share]))
        del self._round[:share]
        if self._ticks % LOOK_TICKS == 0:
            self._repeat()

    def follow(self, copy: Cluster, changed: Sequence[int] | None) -> None:
        """Look at what these tries mean here, and at what else was touched; None: at everything."""
        if changed is None:
            self._sets_of = {token: one.set_ids for token, one in copy.tries().items()}
            self._touched.update(dict.fromkeys(self._all()))
        else:
            for token in changed:
                self._touched.update(dict.fromkeys(self._sets_of.pop(token, ())))
                one = copy.try_of(token)
                if one is not None:
                    self._sets_of[token] = one.set_ids
                    self._touched.update(dict.fromkeys(one.set_ids))
        if self._behind and copy.applied_index > self._copy_index:
            self._touched.update(self._behind)
            self._behind = {}
        self._copy_index = copy.applied_index
        touched, self._touched = self._touched, {}
        for set_id in touched:
            self._attend(copy, set_id)

    def _all(self) -> list[int]:
        return list(dict.fromkeys([*self._words, *self._refusals, *self._partitions.held()]))

    def take_reports(self) -> list[ReportItem]:
        """Return the reports for the conductor, wherever it is; each is handed out once, and again after a while."""
        reports, self._reports = self._reports, []
        return reports

    # ------------------------------------------------------------------ the table

    def _attend(self, copy: Cluster, set_id: int) -> None:
        found = self._partitions.partition(set_id)
        if found is None:
            self._words.pop(set_id, None)  # its leader speaks for it
            self._refusals.pop(set_id, None)
            return
        if copy.applied_index < found.metadata_index:
            self._behind[set_id] = None
            self._words.pop(set_id, None)
            return
        prepared, tries = found.prepared(), copy.tries_on(set_id)
        said: list[ReportItem] = []
        for token in prepared:
            one = tries.get(token)
            if one is None:
                if copy.applied_index >= token:
                    self._settle(copy, set_id, token, publish=False)
            elif one.committed:
                self._settle(copy, set_id, token, publish=True)
            else:
                said.append(ReportItem(token, set_id, ReportKind.PREPARED))
        refused = self._refusals.get(set_id)
        for token, one in tries.items():
            if token in prepared:
                continue
            if one.committed:
                if found.metadata_index >= one.decided_index:
                    said.append(ReportItem(token, set_id, ReportKind.DONE))
            elif refused is not None and token in refused:
                said.append(ReportItem(token, set_id, ReportKind.REFUSED, refused[token]))
        if refused is not None:
            self._keep_refusals(copy, set_id, refused)
        self._say(set_id, said)

    def _keep_refusals(self, copy: Cluster, set_id: int, refused: dict[int, str]) -> None:
        """Keep the refusals of tries that are undecided, or not known to this copy yet."""
        tries = copy.tries_on(set_id)
        for token in list(refused):
            if token not in tries and token <= copy.applied_index:
                del refused[token]
        if not refused:
            del self._refusals[set_id]

    def _settle(self, copy: Cluster, set_id: int, token: int, *, publish: bool) -> None:
        key = (set_id, token)
        if key in self._asked:
            return
        self._asked.add(key)

        def told(done: bool) -> None:
            self._asked.discard(key)
            if done:  # else it is looked at again within a second
                self.touch(set_id)

        ask = self._partitions.publish if publish else self._partitions.withdraw
        ask(set_id, token, copy.applied_index, told)

    def _say(self, set_id: int, said: Sequence[ReportItem]) -> None:
        """Say these, and nothing else, of a set from now on; report at once what is new."""
        before = self._words.pop(set_id, {})
        if not said:
            return
        words = self._words[set_id] = {}
        for item in said:
            known = before.get(item.token)
            if known is not None and known.item == item:
                words[item.token] = known
                continue
            words[item.token] = _Word(item, self._ticks + REPORT_TICKS)
            self._reports.append(item)

    def _repeat(self) -> None:
        for words in self._words.values():
            for word in words.values():
                if word.due_tick <= self._ticks:
                    word.due_tick = self._ticks + REPORT_TICKS
                    self._reports.append(word.item)
                    self.said_again += 1


__all__ = ["Attendant", "Held", "Partitions"]
