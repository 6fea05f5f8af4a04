from __future__ import annotations

from lanner.raft.progress import Progress, ProgressState


def replicating(match: int = 5) -> Progress:
    progress = Progress(match + 1, 1)
    assert progress.acknowledged(match, 1)
    assert progress.state is ProgressState.REPLICATE
    return progress


def test_a_probe_stops_until_it_is_answered_and_its_entries_count_as_sent() -> None:
    progress = Progress(6, 1)
    progress.sent(8, 30)
    assert progress.paused
    assert progress.acknowledged(5, 1)
    assert (progress.state, progress.match_index, progress.next_index) == (ProgressState.REPLICATE, 5, 9)
    assert (progress.inflight_count, progress.inflight_bytes, progress.paused) == (1, 30, False)


def test_an_acknowledgement_frees_what_was_in_flight_up_to_it() -> None:
    progress = replicating()
    progress.sent(7, 10)
    progress.sent(9, 20)
    progress.sent(10, 5)
    assert not progress.has_room(3, 1_000)
    assert not progress.has_room(9, 35)
    assert progress.acknowledged(9, 1)
    assert (progress.inflight_count, progress.inflight_bytes, progress.match_index) == (1, 5, 9)
    assert not progress.acknowledged(9, 1)
    assert not progress.acknowledged(3, 1)


def test_a_refusal_counts_only_when_it_is_about_what_is_open() -> None:
    progress = replicating()
    progress.sent(9, 10)
    assert not progress.refused(4, 2)
    assert progress.refused(9, 7)
    assert (progress.state, progress.next_index, progress.inflight_bytes) == (ProgressState.PROBE, 6, 0)
    assert not progress.refused(9, 3)


def test_a_peer_that_refuses_what_it_had_answered_for_is_not_asked_again_at_once() -> None:
    progress = replicating()
    progress.probe(6)
    assert progress.refused(5, 3)
    assert (progress.next_index, progress.paused) == (6, True)


def test_a_peer_that_awaits_a_snapshot_comes_back_with_an_answer_within_the_log() -> None:
    progress = replicating(0)
    progress.await_snapshot()
    assert not progress.refused(0, 0)
    assert progress.acknowledged(3, 9)
    assert progress.state is ProgressState.SNAPSHOT
    assert progress.acknowledged(8, 9)
    assert (progress.state, progress.next_index) == (ProgressState.REPLICATE, 9)
