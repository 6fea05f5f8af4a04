"""Pages of dead letters: what fits into a reply, and which letters are cut out of a batch together."""

from __future__ import annotations

from lanner import limits
from lanner.broker.desks.dead_streams import _by_batch, _fitting
from lanner.partition import BatchRef, DeadRun

FIRST = BatchRef(0, 100, 7, 1_000, 4, 0, 1, 0, 0)
SECOND = BatchRef(100, 100, 8, 1_000, 4, 100, 1, 0, 0)


def run(number: int, offset: int, ref: BatchRef = FIRST, reason: str = "") -> DeadRun:
    return DeadRun(number, offset, 1, 1, reason, 5, ref)


def test_letters_of_a_batch_are_cut_out_together_while_their_offsets_rise() -> None:
    runs = [run(0, 5), run(1, 9), run(2, 3), run(3, 4), run(4, 100, SECOND), run(5, 6)]
    assert [[one.number for one in part] for part in _by_batch(runs)] == [[0, 1], [2, 3], [4], [5]]
    assert list(_by_batch([])) == []


def test_what_is_said_of_letters_fits_into_a_frame_however_long_their_reasons_are() -> None:
    longest = "\N{BIRD}" * limits.REASON_LENGTH_MAX
    runs = [run(number, number, reason=longest) for number in range(limits.POLL_MESSAGES_MAX)]
    fitting = _fitting(runs)
    told = sum(len(one.reason.encode()) for one in fitting)
    assert 0 < len(fitting) < len(runs) and told <= 2 * limits.MIB
    assert _fitting(runs[:1]) == runs[:1] and _fitting([]) == []
