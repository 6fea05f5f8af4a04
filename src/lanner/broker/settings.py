"""What an operator can set for a broker, with defaults that a newcomer needs no manual for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lanner import limits
from lanner.errors import ValidationError
from lanner.model import check_name
from lanner.net.addresses import parse_address


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """One broker's settings; addresses are HOST:PORT, port 0 picks a free one, empty keeps the door shut."""

    data: str = "data"
    http: str = "127.0.0.1:8080"
    grpc: str = ""
    native: str = "127.0.0.1:7400"
    auto_create_topics: bool = True
    default_partitions: int = 3
    segment_bytes: int = 0  # 0: by the size of the disk
    save_interval_ms: int = limits.SAVE_INTERVAL_MS
    disk_reserve_bytes: int = -1  # -1: by the size of the disk
    rewrite_bytes_per_second: int = 64 * limits.MIB
    scrub_bytes_per_second: int = 8 * limits.MIB  # how fast what lies on disk is read and verified; 0: never
    cache_bytes: int = 64 * limits.MIB
    drain_ms: int = 5_000
    stop_ms: int = 10_000  # for the disk to take what is in flight when this broker stops; then it ends without it
    name: str = ""  # stays when the disk is replaced; empty: one made of the node id
    rack: str = ""
    seeds: tuple[
        str, ...
    ] = ()  # the founders' native addresses, this broker's among them, in the same order everywhere
    join: str = ""  # any broker of a running cluster, or several: HOST:PORT,HOST:PORT
    advertise: str = ""  # where others reach the native door; empty: where it listens
    hand_over_ms: int = 2_000  # for others to take over leadership before this broker stops
    snapshot_bytes_per_second: int = 64 * limits.MIB
    allow_origins: tuple[str, ...] = ()  # web pages that may use REST beside the broker's own, SCHEME://HOST:PORT
    connections_max: int = limits.CONNECTIONS_MAX  # of callers, over all doors, where so many files may be opened
    unfinished_bytes_max: int = limits.UNFINISHED_BYTES_MAX  # of all requests that are not whole yet
    frame_deadline_ms: int = limits.FRAME_DEADLINE_MS  # from a request's first byte to its last
    body_deadline_ms: int = limits.BODY_DEADLINE_MS  # from the end of an HTTP request's head to that of its body
    control_bytes_max: int = limits.CONTROLS_BYTES_MAX  # of the control parts of all native requests in hand

    def __post_init__(self) -> None:
        for what in ("http", "grpc", "native", "advertise"):
            parse_address(getattr(self, what), what)
        self._check_cluster()
        if not self.data:
            raise ValidationError("data is empty: name the folder that holds the broker's data", field="data")
        for what, (low, high) in _BOUNDS.items():
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValidationError(
                    f"{what} is {value!r}: it must be a whole number from {low} to {high}", field=what
                )

    def _check_cluster(self) -> None:
        if self.name:
            check_name(self.name, "name")
        if self.rack:
            check_name(self.rack, "rack")
        if self.seeds and self.join:
            raise ValidationError(
                "give seeds to found a cluster, or join to enter a running one, not both", field="seeds"
            )
        if len(self.seeds) > limits.BROKERS_MAX or len(set(self.seeds)) != len(self.seeds):
            raise ValidationError(f"seeds must be at most {limits.BROKERS_MAX} different addresses", field="seeds")
        for seed in self.seeds:
            if parse_address(seed, "seeds") is None:
                raise ValidationError("seeds holds an empty address: give HOST:PORT,HOST:PORT,...", field="seeds")
        for entrance in self.entrances:
            if parse_address(entrance, "join") is None:
                raise ValidationError("join holds an empty address: give HOST:PORT,HOST:PORT,...", field="join")
        if (self.seeds or self.join) and not self.native:
            raise ValidationError("a broker of a cluster needs its native door: others reach it there", field="native")

    @property
    def entrances(self) -> tuple[str, ...]:
        """Where to ask a running cluster for entry."""
        return tuple(part.strip() for part in self.join.split(",")) if self.join.strip() else ()

    def reserve_bytes(self, disk_bytes: int) -> int:
        """How much of a disk of this size must stay free."""
        if self.disk_reserve_bytes >= 0:
            return self.disk_reserve_bytes
        share = int(disk_bytes * limits.DISK_RESERVE_FRACTION)
        if disk_bytes < limits.SMALL_DISK_BYTES:
            return max(share, 2 * self.segment_size(disk_bytes))
        return max(share, limits.DISK_RESERVE_BYTES)

    def segment_size(self, disk_bytes: int) -> int:
        """How large a segment is on a disk of this size: on a small one small, so that few of them do not fill it."""
        if self.segment_bytes:
            return self.segment_bytes
        size = limits.SEGMENT_BYTES
        while size > limits.SEGMENT_BYTES_MIN and size * limits.SEGMENTS_PER_DISK > disk_bytes:
            size //= 2
        return size


_HOUR_MS: Final = 3_600_000
_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "default_partitions": (1, limits.PARTITIONS_MAX),
    "stop_ms": (0, _HOUR_MS),
    "connections_max": (1, limits.OPEN_FILES_WANTED),
    "unfinished_bytes_max": (2 * limits.FRAME_BYTES_MAX, 1024 * limits.GIB),
    "frame_deadline_ms": (1_000, _HOUR_MS),
    "body_deadline_ms": (1_000, _HOUR_MS),
    "control_bytes_max": (4 * limits.CONTROL_BYTES_MAX, 1024 * limits.GIB),
}
