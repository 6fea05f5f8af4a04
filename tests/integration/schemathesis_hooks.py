"""Loaded by schemathesis itself: what a broker waits for as long as it is told is kept short.

Long polls wait, and so do members that say they have seen a generation of which the broker has not heard: they are told
GenerationAhead, 503, as they should be.
"""

import schemathesis

MOST = {"wait_ms": 20, "number": 0, "generation": 1}


@schemathesis.hook
def before_call(context, case, kwargs):
    for given in (case.body, case.query):
        for name, most in MOST.items():
            if isinstance(given, dict) and _is_more(given.get(name), most):
                given[name] = most


def _is_more(value, most):
    """Whether a broker could take it for a number above this: 60000, 60000.0 and, in a query, "60000"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    try:
        return float(value) > most
    except (ValueError, OverflowError):
        return False
