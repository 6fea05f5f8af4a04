"""What time it is, for everybody who is given the time and does not ask for it."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000
