"""What of a reply fits, and what becomes of the rest.

A decision leases by estimate: each message counts with the average of its batch, and the bytes are not looked at. Who
makes the reply has them in hand and cuts it to what fits, the most urgent first; one message always does. What is left
out goes back uncounted, because nobody saw it.
"""

from __future__ import annotations

from typing import Final

from lanner import limits

FRAME_ROOM_BYTES: Final = limits.FRAME_BYTES_MAX - limits.CONTROL_BYTES_MAX  # for the batches of one reply
TAKING_LEASE_MS: Final = 30_000  # far longer than from the lease to the settle of what is handed out as settled


def reply_bytes_max(max_bytes: int) -> int:
    """What the reply to a poll for so many bytes may hold. An estimate is off by a little as a rule, and a batch of
    which most is leased goes out whole; only beyond twice what was asked for is something left out."""
    return min(2 * max_bytes, limits.POLL_BYTES_MAX)
