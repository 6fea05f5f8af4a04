"""What a broker tells Prometheus of itself, in the text exposition; doors add what they have done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from lanner.broker.coordination import figures
from lanner.broker.readiness import Verdict
from lanner.broker.tries import Figures


class Measured(Protocol):
    """A broker's service, as far as its figures go."""

    @property
    def readiness(self) -> Verdict: ...
    @property
    def forwarded(self) -> int: ...
    @property
    def disk_figures(self) -> Mapping[str, int]: ...
    @property
    def time_ahead_ms(self) -> int: ...
    @property
    def fetched_bytes(self) -> Mapping[str, int]: ...
    @property
    def fenced(self) -> Mapping[str, int]: ...
    @property
    def transaction_figures(self) -> Figures: ...
    @property
    def group_figures(self) -> figures.Figures: ...


def metric_lines(service: Measured) -> list[str]:
    """Return all lines of the text exposition."""
    return [
        "# HELP lanner_disk_slow Whether a sync takes, or a moment ago took, longer than two seconds (1) or not (0).",
        "# TYPE lanner_disk_slow gauge",
        f"lanner_disk_slow {int(service.readiness.disk_slow)}",
        "# HELP lanner_forwarded_calls_total Calls that this broker had another one serve.",
        "# TYPE lanner_forwarded_calls_total counter",
        f"lanner_forwarded_calls_total {service.forwarded}",
        "# HELP lanner_scrubbed_bytes_total Read from disk and verified in the background.",
        "# TYPE lanner_scrubbed_bytes_total counter",
        f"lanner_scrubbed_bytes_total {service.disk_figures['scrubbed_bytes']}",
        "# HELP lanner_scrub_passes_total How often everything on disk was read and verified.",
        "# TYPE lanner_scrub_passes_total counter",
        f"lanner_scrub_passes_total {service.disk_figures['scrub_passes']}",
        "# HELP lanner_damaged_entries Entries on this disk that do not match their checksums.",
        "# TYPE lanner_damaged_entries gauge",
        f"lanner_damaged_entries {service.disk_figures['damaged']}",
        "# HELP lanner_time_ahead_ms How far machine time is ahead of the wall clock; leases wait.",
        "# TYPE lanner_time_ahead_ms gauge",
        f"lanner_time_ahead_ms {service.time_ahead_ms}",
        *_of_readers(service.fetched_bytes),
        *_of_fences(service.fenced),
        *_of_transactions(service.transaction_figures),
        *_of_groups(service.group_figures),
    ]


def _of_readers(fetched_bytes: Mapping[str, int]) -> list[str]:
    return [
        "# HELP lanner_fetched_bytes_total Batches handed to readers of streams, by what this broker was to them.",
        "# TYPE lanner_fetched_bytes_total counter",
        *(f'lanner_fetched_bytes_total{{role="{role}"}} {count}' for role, count in fetched_bytes.items()),
    ]


def _of_fences(fenced: Mapping[str, int]) -> list[str]:
    return [
        "# HELP lanner_group_fenced_total Calls refused because their callers do not have the partition in its group.",
        "# TYPE lanner_group_fenced_total counter",
        *(f'lanner_group_fenced_total{{call="{call}"}} {fenced.get(call, 0)}' for call in _FENCED_CALLS),
    ]


_FENCED_CALLS: Final = ("claim_partitions", "commit", "fetch", "poll", "seek")
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


_GROUP_GAUGES: Final = (
    ("members", "members", "Members of the group"),
    ("generation", "generation", "The generation of the group"),
    ("partitions_unowned", "unowned", "Partitions that members want and nobody owns"),
    ("handovers_waiting", "waiting", "Partitions that wait for their owners to give them up"),
)
_GROUP_COUNTERS: Final = (
    ("partitions_moved_total", "moved", "Partitions that were assigned to another member, while this broker led."),
    ("forced_total", "forced", "Partitions taken from owners that were too slow to give them up, likewise."),
    ("records_bytes_total", "records_bytes", "Commands about groups that this broker put into the metadata's log."),
)


def _of_groups(found: figures.Figures) -> list[str]:
    counts, lines = found.counts, []
    where = f"where the metadata is led, of the first {figures.GROUPS_TOLD_MAX} groups"
    for name, field, text in _GROUP_GAUGES:
        lines += [f"# HELP lanner_group_{name} {text}, {where}.", f"# TYPE lanner_group_{name} gauge"]
        lines += [f'lanner_group_{name}{{group="{one.name}"}} {getattr(one, field)}' for one in found.groups]
    lines += [
        f"# HELP lanner_group_heartbeat_lag_seconds How long its most silent member was not heard, {where}.",
        "# TYPE lanner_group_heartbeat_lag_seconds gauge",
        *(f'lanner_group_heartbeat_lag_seconds{{group="{one.name}"}} {one.silent_ms / 1_000}' for one in found.groups),
    ]
    for name, count, text in _GROUP_COUNTERS:
        lines += [f"# HELP lanner_group_{name} {text}", f"# TYPE lanner_group_{name} counter"]
        lines.append(f"lanner_group_{name} {counts[count]}")
    for name, text, values in (
        (
            "rebalances",
            "Assignments that moved partitions, while this broker led the metadata.",
            {reason: counts[f"rebalances_{reason}"] for reason in figures.REASONS},
        ),
        (
            "evictions",
            "Members that were put out: silent ones while this broker led the metadata, others where it was asked.",
            {reason: counts[f"evicted_{reason}"] for reason in (figures.SILENT, figures.OPERATOR)},
        ),
    ):
        lines += [f"# HELP lanner_group_{name}_total {text}", f"# TYPE lanner_group_{name}_total counter"]
        lines += [f'lanner_group_{name}_total{{reason="{reason}"}} {times}' for reason, times in values.items()]
    for name, text, seconds, times in (
        ("handover", "From what caused a rebalance to its end", counts["handover_ms"] / 1_000, counts["handovers"]),
        ("assign", "What assignors took to answer", counts["assign_us"] / 1_000_000, counts["assignments"]),
    ):
        lines += [
            f"# HELP lanner_group_{name}_seconds {text}, while this broker led the metadata.",
            f"# TYPE lanner_group_{name}_seconds summary",
            f"lanner_group_{name}_seconds_sum {seconds}",
            f"lanner_group_{name}_seconds_count {times}",
        ]
    return lines
