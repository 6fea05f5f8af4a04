from __future__ import annotations

import pytest

from lanner.ledger import journal
from lanner.partition.decision_builder import DecisionBuilder
from lanner.testing.planted import PLANTS, catches, planted
from lanner.testing.queue_model import Violation


def test_a_bug_is_there_for_the_length_of_the_block_and_no_longer() -> None:
    perform, settle = journal.perform, DecisionBuilder.settle
    with planted("skipped-sync"):
        assert journal.perform is not perform
        with planted("stale-lease-accepted"):
            assert DecisionBuilder.settle is not settle
        assert DecisionBuilder.settle is settle
    assert journal.perform is perform


def test_a_bug_is_taken_out_also_when_the_block_fails() -> None:
    perform = journal.perform
    with pytest.raises(ZeroDivisionError), planted("skipped-sync"):
        raise ZeroDivisionError
    assert journal.perform is perform


def test_no_name_plants_nothing() -> None:
    perform = journal.perform
    with planted(""):
        assert journal.perform is perform


def test_only_the_right_rule_counts_as_catching() -> None:
    assert catches("lease-granted-twice", [Violation("leased twice", 1, "")])
    assert not catches("lease-granted-twice", [Violation("broker broke down", 1, "")])
    assert not catches("lease-granted-twice", [])


@pytest.mark.parametrize("name", PLANTS)
def test_each_bug_says_what_is_wrong_and_can_be_put_in(name: str) -> None:
    assert PLANTS[name].says
    with planted(name):
        pass
