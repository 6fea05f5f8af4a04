"""Each rule of the judge of staged publish has a history that breaks it, and one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import features
from lanner.cluster import (
    AbortReason,
    encode_begin_try,
    encode_claim_transaction,
    encode_create_topic,
    encode_end_tries,
    encode_raise_feature_level,
)
from lanner.model import TopicSettings
from lanner.partition import records
from lanner.testing.staged_checkers import STAGED_RULES, Round, StagedJudge, StagedName

BOTH = (1, 2)


class Story:
    """A metadata log, and what two partitions do and show."""

    def __init__(self) -> None:
        self.judge = StagedJudge()
        self.index = 0
        self.enter(encode_raise_feature_level(features.STAGES))
        self.enter(encode_create_topic("staged", TopicSettings(partitions=2), 1))

    def enter(self, command: bytes) -> int:
        self.index += 1
        self.judge.metadata_entry(self.index, command)
        return self.index

    def begin(self, name: str = "a", owner: str = "o", sequence: int = 0) -> int:
        commit_id = name.encode().ljust(16, b".")
        stages = {set_id: [StagedName(name, set_id, 0), StagedName(name, set_id, 1)] for set_id in BOTH}
        self.judge.meant(Round("t", owner, sequence, commit_id, stages))
        command = encode_begin_try(
            "t", owner, sequence, commit_id, (("staged", 1, (0, 1)),), timeout_ms=1_000, now_ms=1
        )
        return self.enter(command)

    def claim(self, owner: str, restart: bool = False) -> None:
        self.enter(encode_claim_transaction("t", owner, restart=restart, now_ms=1))

    def decide(self, set_id: int, *facts: Any) -> None:
        self.judge.decided(set_id, records.Decision(1, 0, list(facts)))

    def prepare(self, token: int, *set_ids: int) -> None:
        for set_id in set_ids or BOTH:
            self.decide(set_id, records.StagesPrepared(token, "t", "o", 0, [], token))

    def commit(self, token: int) -> None:
        self.enter(encode_end_tries([token], [], [], 1))

    def publish(self, token: int) -> None:
        for set_id in BOTH:
            self.decide(set_id, records.StagesPublished(token, 0, 2, self.index))

    def finished(self, token: int) -> None:
        self.enter(encode_end_tries([], [], [token], 1))

    def show(self, name: str = "a", offset: int = 0, sets: tuple[int, ...] = BOTH) -> None:
        for set_id in sets:
            for number in range(2):
                self.judge.seen(set_id, offset + number, StagedName(name, set_id, number))

    def whole(self, name: str = "a", offset: int = 0, **more: Any) -> int:
        token = self.begin(name, **more)
        self.prepare(token)
        self.commit(token)
        self.publish(token)
        self.finished(token)
        self.show(name, offset)
        return token

    def rules(self) -> set[str]:
        return {violation.rule for violation in self.judge.finish()}


@pytest.fixture
def story() -> Story:
    return Story()


def test_commits_one_after_the_other_break_no_rule(story: Story) -> None:
    story.whole("a", 0)
    story.whole("b", 2, sequence=1)
    story.claim("p")
    story.whole("c", 4, owner="p", sequence=2)
    story.claim("q", restart=True)
    story.whole("d", 6, owner="q", sequence=1)
    for name in "abcd":
        story.judge.told("w", name.encode().ljust(16, b"."), "committed")
    assert story.rules() == set()


def test_an_abort_that_is_withdrawn_breaks_no_rule(story: Story) -> None:
    token = story.begin()
    story.prepare(token, 1)
    story.enter(encode_end_tries([], [(token, AbortReason.DEADLINE)], [], 1))
    story.decide(1, records.StagesWithdrawn(token, 0, 2, story.index))
    story.judge.told("w", b"a".ljust(16, b"."), "aborted")
    assert story.rules() == set()


def test_what_is_read_before_its_commit_is_recorded_is_reported(story: Story) -> None:
    story.prepare(story.begin())
    story.show()
    assert story.rules() == {"seen before its outcome"}


def test_an_attempt_that_no_commit_names_must_not_show(story: Story) -> None:
    story.whole()
    story.judge.seen(1, 9, StagedName("loser", 1, 0))
    assert story.rules() == {"seen before its outcome"}


@pytest.mark.parametrize("make", [records.StagesPublished, records.StagesWithdrawn])
def test_a_partition_that_acts_before_the_outcome_is_reported(story: Story, make: Any) -> None:
    token = story.begin()
    story.prepare(token)
    story.decide(1, make(token, 0, 2, story.index))
    assert story.rules() == {"acted otherwise"}


def test_a_partition_that_withdraws_or_prepares_again_what_is_committed_is_reported(story: Story) -> None:
    token = story.whole()
    story.decide(1, records.StagesWithdrawn(token, 0, 2, story.index))
    story.prepare(token, 2)
    assert story.rules() == {"acted otherwise"}
    assert len(story.judge.violations) == 2


def test_a_token_that_nobody_gave_is_reported(story: Story) -> None:
    story.prepare(99, 1)
    assert story.rules() == {"token of nobody"}


def test_a_commit_that_some_partition_has_not_prepared_is_reported(story: Story) -> None:
    token = story.begin()
    story.prepare(token, 1)
    story.commit(token)
    story.show()
    assert story.rules() == {"commit without every vote"}


@pytest.mark.parametrize("shown", [(1,), (1, 2, 2)], ids=["missing", "twice"])
def test_half_a_transaction_and_one_and_a_half_are_reported(story: Story, shown: tuple[int, ...]) -> None:
    token = story.begin()
    story.prepare(token)
    story.commit(token)
    for place, set_id in enumerate(shown):
        story.show(offset=2 * place, sets=(set_id,))
    assert story.rules() == {"half a transaction"}


def test_stages_out_of_order_are_reported(story: Story) -> None:
    token = story.begin()
    story.prepare(token)
    story.commit(token)
    story.show(sets=(1,))
    story.judge.seen(2, 0, StagedName("a", 2, 1))
    story.judge.seen(2, 1, StagedName("a", 2, 0))
    assert story.rules() == {"half a transaction"}


def test_a_later_commit_that_shows_first_is_reported(story: Story) -> None:
    story.whole("a", 2)
    story.whole("b", 0, sequence=1)
    assert story.rules() == {"half a transaction"}


def test_a_writer_that_is_told_otherwise_is_heard(story: Story) -> None:
    story.whole()
    story.begin("b", sequence=1)
    story.judge.told("w", b"b".ljust(16, b"."), "committed")
    story.judge.told("w", b"a".ljust(16, b"."), "aborted")
    story.judge.told_passed(story.judge.rounds[b"a".ljust(16, b".")])
    assert story.rules() == {"told otherwise"}
    assert len(story.judge.violations) == 3


def test_a_fenced_owner_that_begins_is_reported(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanner.cluster.transactions._check_owner", lambda row, owner: None)
    story.claim("p")
    story.begin(owner="o")
    assert story.rules() == {"fence ignored"}


def test_a_sequence_that_is_committed_twice_is_reported(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanner.cluster.transactions._answer_again", lambda row, open_try, command: None)
    story.whole("a", 0)
    story.whole("b", 2)
    assert story.rules() == {"sequence committed twice"}


def test_an_outcome_that_changes_is_reported(story: Story) -> None:
    token = story.whole()
    story.judge._ended(story.judge.tries[token], "aborted")
    assert story.rules() == {"outcome changed"}


def test_every_rule_is_named() -> None:
    assert len(set(STAGED_RULES)) == 9
