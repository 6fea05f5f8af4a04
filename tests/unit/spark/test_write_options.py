"""The options of a write: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from lanner.errors import ValidationError
from lanner.spark.write_options import WriteOptions, parse_write_options

SERVERS = {"servers": "localhost:7400"}


def test_what_is_not_given_has_its_default() -> None:
    assert parse_write_options(SERVERS, streaming=True) == WriteOptions(
        "localhost:7400", "", "", "", -1, 3_600_000, 120_000, "none"
    )


def test_each_option_is_taken_whatever_its_case_and_what_is_for_spark_is_not_ours() -> None:
    given = {
        **SERVERS,
        "TOPIC": "t",
        "valueformat": "json",
        "transactionalId": "nightly",
        "transactionSequence": "7",
        "stageTimeout": "2h",
        "commitTimeout": "30s",
        "codec": "zstd",
        "checkpointLocation": "/tmp/x",
    }
    found = parse_write_options(given, streaming=False)
    assert found == WriteOptions("localhost:7400", "t", "json", "nightly", 7, 7_200_000, 30_000, "zstd")


@pytest.mark.parametrize(
    ("given", "streaming", "problem"),
    [
        ({"topc": "t"}, True, "option topc: there is no such option of a write, did you mean topic?"),
        ({"valueFormat": "avro"}, True, "option valueFormat: it is 'avro'; give bytes or text or json"),
        ({"transactionSequence": "1"}, True, "numbers its batches itself"),
        ({"transactionSequence": "1"}, False, "option transactionalId: a batch write needs both"),
        ({"transactionalId": "a"}, False, "option transactionSequence: a batch write needs both"),
        ({"transactionalId": "a", "transactionSequence": "-1"}, False, "option transactionSequence: it is '-1'"),
        ({"transactionalId": "a b"}, True, "transactionalId"),
        ({"topic": ""}, True, "topic"),
        ({"commitTimeout": "1h"}, True, "option commitTimeout: it is 3600000 ms"),
        ({"stageTimeout": "soon"}, True, "option stageTimeout: it is 'soon'"),
        ({"codec": "gzip"}, True, "option codec: it is 'gzip'"),
        ({"servers": " "}, True, "option servers: it is missing"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(given: dict[str, str], streaming: bool, problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_write_options({**SERVERS, **given}, streaming=streaming)
    assert problem in caught.value.message
