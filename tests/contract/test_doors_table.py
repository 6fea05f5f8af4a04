"""The tables of docs/doors.md are made by the suite: `python -m tests.contract.test_doors_table` writes them anew."""

from __future__ import annotations

from lanner.calls.table import ROWS
from tests.contract import test_doors, test_doors_brokers, test_doors_errors, test_doors_members
from tests.contract.doors.parity import CALLS, DOCUMENT, NATIVE_ONLY, document, false_reasons, gaps

SUITE = (test_doors, test_doors_brokers, test_doors_errors, test_doors_members)  # importing them registers their cases


def test_every_call_and_every_error_is_shown_over_each_door_or_excused() -> None:
    assert gaps() == []


def test_every_test_that_a_reason_cites_shows_the_error() -> None:
    assert false_reasons() == []


def test_every_row_of_the_table_of_calls_is_in_the_suite_or_excused() -> None:
    assert {row.command for row in ROWS.values()} == {*CALLS.values(), *NATIVE_ONLY}
    assert not set(CALLS.values()) & set(NATIVE_ONLY)


def test_the_document_prints_what_the_suite_runs() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == document(text), "run `python -m tests.contract.test_doors_table`"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
