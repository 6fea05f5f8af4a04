"""Every mistake in a pipeline file is found at once, with its line and with what to write instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.spark.pipelines import checking, example
from lanner.spark.pipelines.meaning import known_columns, validate
from lanner.spark.pipelines.plan import Pipeline, duration_ms

GOOD = """\
name: revenue
sources:
  orders:
    topic: orders
    decode:
      format: json
      columns:
        id: bigint
        amount: decimal(10, 2)
        at: timestamp
      invalid:
        topic: orders-invalid
    watermark:
      column: at
      delay: 10 minutes
  refunds:
    format: json
    path: ./refunds
    columns: {id: bigint, reason: "array<string>"}
queries:
  totals:
    sql: |
      with large as (select * from orders where amount > 10)
      select window(at, '1 minute') as w, sum(amount) as total
      from large group by 1
    sink:
      parquet: ./totals
    trigger:
      every: 5 seconds
"""
PYTHON = "def enrich(spark, sources):\n    return sources['orders']\n"


def mistakes(text: str) -> list[tuple[int, str]]:
    found, wrong = validate(text, {"enrich.py": PYTHON, "broken.py": "def ("}.get)
    assert (found is None) == bool(wrong)
    return [tuple(one) for one in wrong]


def replaced(old: str, new: str) -> str:
    assert GOOD.count(old) >= 1
    return GOOD.replace(old, new, 1)


def test_a_good_file_becomes_a_pipeline_with_its_defaults() -> None:
    found, wrong = validate(GOOD, {}.get)
    assert wrong == []
    assert isinstance(found, Pipeline)
    assert found.servers == "localhost:7400"
    assert found.queries["totals"].restart.limit == 5
    assert found.checkpoint_of("totals") == "./checkpoints/totals"
    assert found.sources["orders"].decode is not None
    assert found.sources["orders"].decode.columns["amount"] == "decimal(10, 2)"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("topic: orders\n", "topc: orders\n", 4, "sources.orders knows no 'topc'; did you mean 'topic'?"),
        ("topic: orders\n", "topics: []\n", 4, "sources.orders.topics must not be empty"),
        ("topic: orders\n", "topic: orders\n    pattern: a\n", 3, "and has topic and pattern"),
        ("topic: orders\n", "pattern: '['\n", 4, "not a regular expression"),
        ("topic: orders\n", "topic: 'a b'\n", 4, "use the characters A-Z a-z 0-9 . _ -"),
        ("name: revenue\n", "", 1, "the file needs 'name'"),
        ("id: bigint\n", "id: number\n", 8, "write a type of Spark's SQL"),
        ("format: json\n", "format: yaml\n", 6, "there are json, csv"),
        ("      invalid:\n        topic: orders-invalid\n", "", 5, "sources.orders.decode needs 'invalid'"),
        ("column: at", "column: when", 14, "orders has no column 'when'"),
        ("column: at", "column: id", 14, "a watermark goes by a timestamp, and 'id' is bigint"),
        ("10 minutes", "ten minutes", 15, "write a number and a unit"),
        ("    path: ./refunds\n", "", 17, "say which folder with path"),
        ('    columns: {id: bigint, reason: "array<string>"}\n', "", 17, "refunds needs columns"),
        ("from large group", "from lage group", 25, "there is no source 'lage'; there are orders, refunds"),
        ("parquet: ./totals", "parquet: ./totals\n    mode: complete", 28, "files can only be appended to"),
        ("parquet: ./totals", "parquet: ./totals\n      topic: x", 26, "exactly one of topic, parquet"),
        ("every: 5 seconds", "every: 5", 29, "must be text, and is 5"),
        ("  totals:\n", "  orders:\n", 3, "'orders' is a source and a query"),
        ("  totals:\n", "  to-tals:\n", 21, "'to-tals' is no name"),
        ("  totals:\n", "  totals:\n    restart: {limit: -1}\n", 22, "it must be at least 0"),
        (
            "  totals:\n",
            "  totals:\n    checkpoint: checkpoints//orders__invalid/\n",
            22,
            "orders__invalid has the same checkpoint",
        ),
        ("  totals:\n", "  orders__invalid:\n    checkpoint: ./x\n", 21, "what orders cannot decode is written by"),
        ("  refunds:\n", "  Orders:\n", 16, "orders is a source, too, and SQL does not tell capitals"),
        ("id: bigint\n", "ID: int\n        id: bigint\n", 9, "ID is a column, too, and SQL does not tell capitals"),
        ("      parquet: ./totals\n", "      memory: Refunds\n", 27, "refunds is a source, too, and SQL does not tell"),
        ("topic: orders-invalid", "topic: orders", 12, "they would be read again, and come back for ever"),
        ("topic: orders\n", "topic: orders\n    options: {maxOffsetPerTrigger: 5}\n", 5, "did you mean maxOffsetsP"),
        (
            "topic: orders\n",
            "topic: orders\n    options:\n      startingOffsets: 5\n",
            6,
            "startingOffsets: '5' does not map",
        ),
        ("topic: orders\n", "topic: orders\n    options: {endingOffsets: latest}\n", 5, "a streaming read has no end"),
        ("topic: orders\n", "topic: orders\n    options: {assign: '{}'}\n", 5, "subscribe: it contradicts assign"),
        ("parquet: ./totals", "topic: x\n      options: {codec: gzip}", 28, "give none or lz4 or zstd"),
        ("topic: orders\n", 'topic: "orders\\n"\n', 4, "use the characters A-Z a-z 0-9 . _ -"),
        ("queries:\n", "queries:\n  other: {python: 'x.py:f', sink: {console: true}}\n", 21, "there is no file x.py"),
        ("queries:\n", "queries:\n  o: {python: 'enrich.py:f', sink: {console: true}}\n", 21, "no function 'f'"),
        ("queries:\n", "queries:\n  o: {python: 'broken.py:f', sink: {console: true}}\n", 21, "is not Python: line 1"),
        (
            "queries:\n",
            "queries:\n  o: {python: 'no_such:f', sink: {console: true}}\n",
            21,
            "no Python module 'no_such'",
        ),
        ("queries:\n", "queries:\n  totals: {}\n", 22, "'totals' is here twice: first in line 21"),
        ("name: revenue", "name: [", 3, "not YAML"),
        ("name: revenue", "name: &a [*a]", 1, "alias holds itself"),
        ("  totals:\n", "  totals:\0\n", 21, "not YAML: the character #x0000 cannot be in it"),
    ],
)
def test_a_mistake_is_told_with_its_line(old: str, new: str, line: int, says: str) -> None:
    found = mistakes(replaced(old, new))
    if not says:
        assert found == []
        return
    assert any(at == line and says in what for at, what in found), found


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = replaced("topic: orders\n", "topc: orders\n").replace("5 seconds", "soon").replace("id: bigint", "id: x", 1)
    assert [line for line, _ in mistakes(text)] == [3, 4, 8, 29]


@pytest.mark.parametrize(
    "sql",
    [
        "select extract(hour from at), trim(both 'x' from id) from orders",
        "select 'from nowhere' from orders where a is distinct from b -- from elsewhere",
        "select * from (select * from orders) join refunds using (id)",
        "with a as (select 1 from orders), b (x) as (select * from a) select * from b",
        "select * from `orders` lateral view explode(xs) t as x",
        "select * from range(10) join orders",
    ],
)
def test_a_word_after_from_that_is_no_table_is_no_mistake(sql: str) -> None:
    old = GOOD[GOOD.index("    sql: |") : GOOD.index("    sink:\n      parquet")]
    assert mistakes(GOOD.replace(old, f"    sql: {json.dumps(sql)}\n")) == []


def test_an_empty_file_and_one_that_is_no_mapping_say_what_to_do() -> None:
    assert mistakes("")[0][1].startswith("the file is empty: lanner pipeline new")
    assert mistakes("- a\n")[0][1] == "the file must be names with values, and is a list"


def test_a_mountain_of_aliases_is_refused_and_not_climbed() -> None:
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 20)]
    assert any("too many values" in what for _, what in mistakes("\n".join(layers)))


def test_two_queries_with_one_checkpoint_are_a_mistake() -> None:
    text = (
        GOOD
        + "  more:\n    sql: select * from orders\n    sink: {console: true}\n    checkpoint: ./checkpoints/totals\n"
    )
    assert mistakes(text) == [(33, "totals has the same checkpoint: ./checkpoints/totals")]


def test_a_table_in_memory_belongs_to_one_query() -> None:
    more = "  %s:\n    sql: select * from orders\n    sink: {memory: %s}\n"
    assert mistakes(GOOD + more % ("a", "found") + more % ("b", "kept")) == []
    found = mistakes(GOOD + more % ("a", "found") + more % ("b", "Found"))
    assert found == [(35, "found is a table in memory, too, and SQL does not tell capitals and small letters apart")]


def test_a_decoded_column_takes_the_place_of_that_of_its_message_in_any_letters() -> None:
    pipeline, wrong = validate(replaced("id: bigint\n", "Key: bigint\n"), {}.get)
    assert wrong == [] and pipeline is not None
    columns = known_columns(pipeline.sources["orders"])
    assert columns is not None and "Key" in columns and "key" not in columns


def test_a_transactional_id_belongs_to_one_topic() -> None:
    text = GOOD.replace("topic: orders-invalid", "topic: orders-invalid\n        transactional_id: shop", 1)
    more = "  more:\n    sql: select * from orders\n    sink: {topic: x, transactional_id: %s}\n"
    assert mistakes(text + more % "other") == []
    assert mistakes(text + more % "shop") == [(33, "sources.orders.decode.invalid has the same transactional_id: shop")]
    files = GOOD.replace("parquet: ./totals", "parquet: ./totals\n      transactional_id: shop")
    assert mistakes(files) == [(28, "transactional_id is for topics")]


@pytest.mark.parametrize("name", example.NAMES)
def test_the_examples_that_are_shipped_have_no_mistakes(name: str) -> None:
    assert mistakes(example.example_text(name)) == []


def words_of(rule: Any) -> set[str]:
    """The words of JSON Schema in a rule and the rules in it."""
    found = set(rule)
    for word in ("properties", "$defs"):
        for inner in rule.get(word, {}).values():
            found |= words_of(inner)
    for word in ("items", "additionalProperties"):
        if isinstance(rule.get(word), dict):
            found |= words_of(rule[word])
    return found


def test_the_schema_says_nothing_that_is_not_checked() -> None:
    assert words_of(checking.schema()) <= checking._KNOWN


def test_durations_are_counted_in_milliseconds() -> None:
    assert [duration_ms(text) for text in ("1 second", "250 milliseconds", "2minutes", "1 hour")] == [
        1_000,
        250,
        120_000,
        3_600_000,
    ]
