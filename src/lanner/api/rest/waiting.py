"""Calls that wait, for as long as their client does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from lanner.api.rest.operations import AnyCall
from lanner.errors import ServiceUnavailable

Result = TypeVar("Result")


async def while_there(call: AnyCall, work: Awaitable[Result]) -> Result:
    """Wait for this work, and cancel it when the client goes away."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(call.disconnected())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    finally:
        leaving.cancel()
        working.cancel()
    raise ServiceUnavailable("the client has gone")
