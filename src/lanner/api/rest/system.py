"""The broker itself: is it alive, is it ready, what has this door done."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from lanner.api.rest.operations import Call, Raw
from lanner.api.rest.shapes import HealthReply, NoBody, NoQuery
from lanner.errors import ServiceUnavailable


async def healthz(call: Call[NoBody, NoQuery]) -> HealthReply:
    return HealthReply(status="ok")


async def readyz(call: Call[NoBody, NoQuery]) -> HealthReply:
    found = call.service.readiness
    if found.refusal:
        raise ServiceUnavailable(found.refusal, retry_after_ms=1_000)
    return HealthReply(status=found.status, stopped=call.service.stopped_partitions or None)


async def metrics(call: Call[NoBody, NoQuery]) -> Raw:
    """The text exposition that Prometheus reads."""
    lines = [
        "# HELP lanner_ready Whether the broker serves (1) or not (0).",
        "# TYPE lanner_ready gauge",
        f"lanner_ready {int(call.service.readiness.ready)}",
        "# HELP lanner_unfinished_bytes Held of requests that are not whole yet, over all doors.",
        "# TYPE lanner_unfinished_bytes gauge",
        f"lanner_unfinished_bytes {call.door.unfinished.held_bytes}",
        "# HELP lanner_unfinished_let_go_total Requests that were not waited for: too slow, or too much at once.",
        "# TYPE lanner_unfinished_let_go_total counter",
        f"lanner_unfinished_let_go_total {call.door.unfinished.let_go_total}",
        "# HELP lanner_connections Open connections, over all doors.",
        "# TYPE lanner_connections gauge",
        f"lanner_connections {call.door.seats.open}",
        "# HELP lanner_connections_max How many callers may have; some more are kept for other brokers.",
        "# TYPE lanner_connections_max gauge",
        f"lanner_connections_max {call.door.seats.callers_max}",
        "# HELP lanner_connections_refused_total Connections that were refused because there were too many.",
        "# TYPE lanner_connections_refused_total counter",
        f"lanner_connections_refused_total {call.door.seats.refused_total}",
        "# HELP lanner_rest_requests_total Requests answered by the REST door.",
        "# TYPE lanner_rest_requests_total counter",
    ]
    lines += [
        f'lanner_rest_requests_total{{operation="{operation}",status="{status}"}} {count}'
        for (operation, status), count in sorted(call.door.requests.items())
    ]
    lines += call.service.metrics()
    return Raw("text/plain; version=0.0.4; charset=utf-8", ("\n".join(lines) + "\n").encode())


def software_version() -> str:
    try:
        return version("lanner")
    except PackageNotFoundError:
        return "unknown"
