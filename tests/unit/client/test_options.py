"""The options that calls hand on are the ones that are taken at their end."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import lanner
from lanner.client.consumer import Consumer
from lanner.client.member_settings import MemberSettings
from lanner.client.options import ColumnOptions, ConsumerOptions, MessageOptions, ProducerOptions, ReaderOptions
from lanner.client.producer import Producer
from lanner.client.reader import Reader


@pytest.mark.parametrize(
    ("options", "taker"),
    [
        (MessageOptions, Producer.send),
        (ColumnOptions, Producer.publish_many),
        (ProducerOptions, Producer.__init__),
        (ConsumerOptions, Consumer.__init__),
        (ReaderOptions, Reader.__init__),
    ],
)
def test_every_option_is_taken_under_its_name_and_type_and_has_a_default(
    options: type[Any], taker: Callable[..., Any]
) -> None:
    taken = [one for one in inspect.signature(taker).parameters.values() if one.kind is one.KEYWORD_ONLY]
    named = {name: getattr(kind, "__forward_arg__", kind) for name, kind in options.__annotations__.items()}
    of_members = {name: kind for name, kind in named.items() if name in MemberSettings._fields}
    settings = {name: kind.__forward_arg__ for name, kind in MemberSettings.__annotations__.items()}
    assert of_members.items() <= settings.items()
    named = {name: kind for name, kind in named.items() if name not in of_members}
    assert {one.name: one.annotation for one in taken} == named
    assert all(one.default is not one.empty for one in taken)


def test_consumers_take_everything_that_can_be_said_of_members_and_readers_all_but_registering() -> None:
    fields = set(MemberSettings._fields)
    assert fields <= set(ConsumerOptions.__annotations__)
    assert fields - set(ReaderOptions.__annotations__) == {"register"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda queue: queue.publish("t", b"x", ttl=5), "publish() has no option 'ttl': did you mean ttl_ms?"),
        (
            lambda queue: queue.publish_many("t", [b"x"], key=b"k"),
            "publish_many() has no option 'key': did you mean keys?",
        ),
        (
            lambda queue: queue.producer().publish("t", b"x", delay=5),
            "publish() has no option 'delay': did you mean delay_ms?",
        ),
        (lambda queue: queue.producer(linger=5), "producer() has no option 'linger': did you mean linger_ms?"),
        (
            lambda queue: queue.consumer("t", "g", autoack=True),
            "consumer() has no option 'autoack': did you mean auto_ack?",
        ),
        (lambda queue: queue.reader("t", begin=5), "reader() has no option 'begin'; there are assignor, instance, "),
        (lambda queue: queue.dead_letter_reader("t", "g", from_end=1), "dead_letter_reader() has no option 'from_end'"),
        (
            lambda queue: queue.transaction("t", "o", 1, hold=5),
            "transaction() has no option 'hold': did you mean hold_ms?",
        ),
        (lambda queue: queue.stage("t", "o", 1, batch=5), "stage() has no option 'batch'"),
    ],
)
async def test_an_option_that_is_misspelt_is_refused_by_the_call_that_got_it(
    broker: Any, call: Callable[[Any], Any], said: str
) -> None:
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(TypeError, match=re.escape(said)):
            await call(queue)
