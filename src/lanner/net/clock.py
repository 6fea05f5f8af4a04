"""What time it is, for everybody who is given the time and does not ask for it."""

from __future__ import annotations

import asyncio
import time


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def wall_ms_at(loop_ms: float) -> int:
    """The same at the moment when the running loop's clock showed so many milliseconds."""
    return now_ms() - round(asyncio.get_running_loop().time() * 1_000 - loop_ms)
