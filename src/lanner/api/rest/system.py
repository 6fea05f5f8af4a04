"""The broker itself: is it alive, is it ready, what has this door done."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from lanner.api.rest.operations import Call, Raw
from lanner.api.rest.shapes import HealthReply, NoBody, NoQuery
from lanner.broker.tries import Figures
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
        "# HELP lanner_disk_slow Whether a sync takes, or a moment ago took, longer than two seconds (1) or not (0).",
        "# TYPE lanner_disk_slow gauge",
        f"lanner_disk_slow {int(call.service.readiness.disk_slow)}",
        "# HELP lanner_forwarded_calls_total Calls that this broker had another one serve.",
        "# TYPE lanner_forwarded_calls_total counter",
        f"lanner_forwarded_calls_total {call.service.forwarded}",
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
        "# HELP lanner_scrubbed_bytes_total Read from disk and verified in the background.",
        "# TYPE lanner_scrubbed_bytes_total counter",
        f"lanner_scrubbed_bytes_total {call.service.disk_figures['scrubbed_bytes']}",
        "# HELP lanner_scrub_passes_total How often everything on disk was read and verified.",
        "# TYPE lanner_scrub_passes_total counter",
        f"lanner_scrub_passes_total {call.service.disk_figures['scrub_passes']}",
        "# HELP lanner_damaged_entries Entries on this disk that do not match their checksums.",
        "# TYPE lanner_damaged_entries gauge",
        f"lanner_damaged_entries {call.service.disk_figures['damaged']}",
        "# HELP lanner_time_ahead_ms How far machine time is ahead of the wall clock; leases wait.",
        "# TYPE lanner_time_ahead_ms gauge",
        f"lanner_time_ahead_ms {call.service.time_ahead_ms}",
        "# HELP lanner_rest_requests_total Requests answered by the REST door.",
        "# TYPE lanner_rest_requests_total counter",
    ]
    lines += [
        f'lanner_rest_requests_total{{operation="{operation}",status="{status}"}} {count}'
        for (operation, status), count in sorted(call.door.requests.items())
    ]
    lines += _of_readers(call.service.fetched_bytes)
    lines += _of_transactions(call.service.transaction_figures)
    return Raw("text/plain; version=0.0.4; charset=utf-8", ("\n".join(lines) + "\n").encode())


def _of_readers(fetched_bytes: Mapping[str, int]) -> list[str]:
    return [
        "# HELP lanner_fetched_bytes_total Batches handed to readers of streams, by what this broker was to them.",
        "# TYPE lanner_fetched_bytes_total counter",
        *(f'lanner_fetched_bytes_total{{role="{role}"}} {count}' for role, count in fetched_bytes.items()),
    ]


_TRANSACTION_FIGURES: Final = (
    ("open", "gauge", "Commits that are under way, by this broker's copy of the metadata."),
    ("remembered", "gauge", "Transactions of which is known what they have committed, likewise."),
    ("forgotten", "gauge", "Transactions of which only a hash is left, likewise."),
    ("staged_bytes", "gauge", "Staged where this broker leads, and not prepared."),
    ("prepared_bytes", "gauge", "Prepared where this broker leads: they wait for an outcome."),
    ("stages_expired_total", "counter", "Stages that nobody committed in time, where this broker leads."),
    (
        "stages_dropped_total",
        "counter",
        "Stages that their writer gave up, or whose work was committed by another attempt, likewise.",
    ),
    ("repeated_total", "counter", "Commits asked of this broker whose sequence was committed before."),
    (
        "reports_again_total",
        "counter",
        "Reports of this broker to the one that leads the metadata whose effect was late.",
    ),
    ("committed_total", "counter", "Commits, while this broker led the metadata."),
)


def _of_transactions(figures: Figures) -> list[str]:
    lines = []
    for name, kind, text in _TRANSACTION_FIGURES:
        lines += [f"# HELP lanner_transactions_{name} {text}", f"# TYPE lanner_transactions_{name} {kind}"]
        lines.append(f"lanner_transactions_{name} {getattr(figures, name.removesuffix('_total'))}")
    lines += [
        "# HELP lanner_transactions_aborted_total Aborts by reason, while this broker led the metadata.",
        "# TYPE lanner_transactions_aborted_total counter",
        *(
            f'lanner_transactions_aborted_total{{reason="{reason}"}} {count}'
            for reason, count in figures.aborted.items()
        ),
        "# HELP lanner_transactions_oldest_seconds How long the oldest commit waits, where the metadata is led.",
        "# TYPE lanner_transactions_oldest_seconds gauge",
        f'lanner_transactions_oldest_seconds{{waits_for="outcome"}} {figures.undecided_ms / 1_000}',
        f'lanner_transactions_oldest_seconds{{waits_for="visibility"}} {figures.unconfirmed_ms / 1_000}',
    ]
    for name, text, total_ms, count in (
        ("outcome", "From the beginning of a commit to its record", figures.outcome_ms, figures.committed),
        ("visible", "From there until every partition shows it", figures.visible_ms, figures.visible),
    ):
        lines += [
            f"# HELP lanner_transactions_{name}_seconds {text}, while this broker led the metadata.",
            f"# TYPE lanner_transactions_{name}_seconds summary",
            f"lanner_transactions_{name}_seconds_sum {total_ms / 1_000}",
            f"lanner_transactions_{name}_seconds_count {count}",
        ]
    return lines


def software_version() -> str:
    try:
        return version("lanner")
    except PackageNotFoundError:
        return "unknown"
