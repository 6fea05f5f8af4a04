"""One topic of a consumer: the polls for it, and the settles of what they brought."""

from __future__ import annotations

from collections.abc import Callable

from lanner.client.brokers import Brokers
from lanner.client.delivery import Part, Settling
from lanner.client.polling import Poller, Wanted
from lanner.client.routing import Routing
from lanner.client.settling import SettleQueue
from lanner.wire.connection import Reply
from lanner.wire.messages import Polled, SettleItem, SettleKind


class TopicQueue:
    """Takes the settles of its messages: they know it as their settler."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        wanted: Wanted,
        *,
        check_open: Callable[[], None],  # before a poll
        check_settles: Callable[[], None],  # before a settle
        forget: Callable[[Part], None],
    ) -> None:
        self.topic = wanted.topic
        self.group = wanted.group
        self.forget = forget
        self.settles = SettleQueue(brokers, routing, self.topic, self.group)
        self.poller = Poller(brokers, routing, self.settles, wanted, self.give_back, check_open)
        self._check_settles = check_settles
        self._auto_ack = wanted.auto_ack

    def settle(self, items: list[SettleItem]) -> Settling:
        """Queue settle items; they leave with the next poll, or at the end of this turn of the loop."""
        self._check_settles()
        return self.settles.add(items)

    def give_back(self, reply: Reply[Polled]) -> None:
        """Leases came for a call that is over: others may have the messages at once."""
        items = [
            SettleItem(one.partition, one.token, part.first_offset, part.count, SettleKind.NACK, 0, "")
            for one in reply.control.batches
            for part in one.ranges
        ]
        if items and not self._auto_ack:
            self.settles.release(items)
