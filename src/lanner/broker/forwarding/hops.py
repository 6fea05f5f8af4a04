"""One hop: a call, asked of another broker over its peer link.

The other broker serves it itself or refuses (NotLeader): one hop, never two. Nothing is repeated here: who asks again,
where and how long is decided above.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lanner.broker.ports import PeerCalls
from lanner.calls import Answer, Bulk, row_of
from lanner.calls.merging import cut
from lanner.errors import BadGateway, ConnectionLost, DeadlineExceeded
from lanner.wire.messages import AnswerT, Call

_LISTEN_SECONDS: Final = 0.5


async def hop(
    peers: PeerCalls, node_id: str, name: str, caller: str, call: Call[AnswerT], bulk: Bulk, timeout_ms: int
) -> Answer[AnswerT]:
    """Ask another broker, for as long as it gives signs of life: its partitions may be led elsewhere soon.

    The call names its caller, unless brokers of an earlier release may be there, which would not know the envelope.
    """
    row, loop = row_of(call), asyncio.get_running_loop()
    patience = asyncio.timeout(None)
    timer: asyncio.TimerHandle

    def listen() -> None:
        nonlocal timer
        if peers.is_alive(node_id):
            timer = loop.call_later(_LISTEN_SECONDS, listen)
        else:
            patience.reschedule(loop.time())

    timer = loop.call_later(_LISTEN_SECONDS, listen)
    try:
        async with patience:
            reply = await peers.call(
                node_id, row.command, call, bulk, timeout_ms=timeout_ms + row.waits(call), caller=caller
            )
    except (ConnectionLost, DeadlineExceeded) as error:
        raise _silence(name, node_id, error.message) from error
    except TimeoutError:
        raise _silence(name, node_id, "it has gone silent") from None
    finally:
        timer.cancel()
    pieces = () if row.sizes is None else list(cut(reply.bulk, row.sizes(reply.control)))
    return Answer(reply.control, pieces)


def _silence(name: str, node_id: str, why: str) -> BadGateway:
    """A caller that waits for the answer wants to know which broker did not give it."""
    return BadGateway(f"broker {name} did not answer: {why}", broker=name, node_id=node_id)
