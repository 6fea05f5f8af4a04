"""What an operator can set for a broker, with defaults that a newcomer needs no manual for."""

from __future__ import annotations

from dataclasses import dataclass

from lanner import limits
from lanner.errors import ValidationError


def parse_address(text: str, what: str) -> tuple[str, int] | None:
    """HOST:PORT as a pair; empty means that this door stays shut."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65_535:
        raise ValidationError(f"{what} is {text!r}: give HOST:PORT, such as 127.0.0.1:7400", field=what)
    return host.strip("[]") or "127.0.0.1", int(port)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """One broker's settings; addresses are HOST:PORT, port 0 picks a free one, empty keeps the door shut."""

    data: str = "data"
    http: str = "127.0.0.1:8080"
    grpc: str = ""
    native: str = "127.0.0.1:7400"
    auto_create_topics: bool = True
    default_partitions: int = 3
    segment_bytes: int = limits.SEGMENT_BYTES
    save_interval_ms: int = limits.SAVE_INTERVAL_MS
    disk_reserve_bytes: int = -1  # -1: the larger of 1 GiB and 5% of the disk
    rewrite_bytes_per_second: int = 64 * limits.MIB
    cache_bytes: int = 64 * limits.MIB
    drain_ms: int = 5_000

    def __post_init__(self) -> None:
        for what in ("http", "grpc", "native"):
            parse_address(getattr(self, what), what)
        if not self.data:
            raise ValidationError("data is empty: name the folder that holds the broker's data", field="data")
        if not 1 <= self.default_partitions <= limits.PARTITIONS_MAX:
            raise ValidationError(
                f"default_partitions must lie in 1 to {limits.PARTITIONS_MAX}", field="default_partitions"
            )

    def reserve_bytes(self, disk_bytes: int) -> int:
        """How much of a disk of this size must stay free."""
        if self.disk_reserve_bytes >= 0:
            return self.disk_reserve_bytes
        return max(limits.DISK_RESERVE_BYTES, int(disk_bytes * limits.DISK_RESERVE_FRACTION))
