"""Loaded by schemathesis itself: long polls wait as long as they are told, and a test has no time for that."""

import schemathesis

WAIT_MS_MAX = 20


@schemathesis.hook
def before_call(context, case, kwargs):
    for given in (case.body, case.query):
        if isinstance(given, dict) and str(given.get("wait_ms", "")).isdigit():
            given["wait_ms"] = min(int(given["wait_ms"]), WAIT_MS_MAX)
