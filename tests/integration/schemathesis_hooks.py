"""Loaded by schemathesis itself: long polls wait as long as they are told, and a test has no time for that."""

import schemathesis

WAIT_MS_MAX = 20


@schemathesis.hook
def before_call(context, case, kwargs):
    for given in (case.body, case.query):
        if isinstance(given, dict) and _is_long(given.get("wait_ms")):
            given["wait_ms"] = WAIT_MS_MAX


def _is_long(wait_ms):
    """Whether a broker could take it for a long time: 60000, 60000.0 and, in a query, "60000"."""
    if isinstance(wait_ms, bool) or not isinstance(wait_ms, int | float | str):
        return False
    try:
        return float(wait_ms) > WAIT_MS_MAX
    except (ValueError, OverflowError):
        return False
