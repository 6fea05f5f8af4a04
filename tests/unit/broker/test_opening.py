from __future__ import annotations

import logging

import pytest

from lanner.broker.opening import Converting


def test_a_conversion_is_told_now_and_then_and_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 0.5, 2.5, 2.5, 3.0])
    with caplog.at_level(logging.WARNING):
        converting = Converting(lambda: next(times))
        for done in (10, 20, 30):
            converting.tell(done, 40)
        converting.tell(40, 40)
    assert [record.getMessage() for record in caplog.records] == [
        "converting the table of an older release: 20 of 40 rows (50%)",
        "converted the table of an older release: 40 rows have checksums now",
    ]
