"""The SDK: asynchronous first. A Queue is the way in; producers, consumers, readers and admin are reached from it.

It imports only the wire, batch and net rooms and the foundations, so it works without a broker's dependencies.
"""

from lanner.client.admin import Admin, DeadMessage, DeadMessages
from lanner.client.commits import Claimed, Committed
from lanner.client.consumer import Consumer
from lanner.client.delivery import Message, MessageBatch, Settling
from lanner.client.producer import Producer
from lanner.client.queue import Queue, connect
from lanner.client.reader import Reader
from lanner.client.receipts import Receipt, Receipts, Sending
from lanner.client.stages import Staged, StageWriter
from lanner.client.stream import Hole, ReadBatch
from lanner.client.transactions import Transaction

__all__ = [
    "Admin",
    "Claimed",
    "Committed",
    "Consumer",
    "DeadMessage",
    "DeadMessages",
    "Hole",
    "Message",
    "MessageBatch",
    "Producer",
    "Queue",
    "ReadBatch",
    "Reader",
    "Receipt",
    "Receipts",
    "Sending",
    "Settling",
    "StageWriter",
    "Staged",
    "Transaction",
    "connect",
]
