"""What an operator can set for a proxy. Its doors have the bounds of a broker's doors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lanner import limits
from lanner.client.session import parse_addresses
from lanner.errors import ValidationError
from lanner.model import check_name
from lanner.net.addresses import parse_address

NATIVE: Final = "127.0.0.1:7500"
HTTP: Final = "127.0.0.1:8090"
GRPC: Final = "127.0.0.1:8010"


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """One proxy's settings; addresses are HOST:PORT, port 0 picks a free one, empty keeps the door shut."""

    servers: str = "localhost:7400"  # native addresses of brokers; any one that answers is enough
    native: str = NATIVE
    http: str = HTTP
    grpc: str = ""
    name: str = "proxy"  # under which brokers see its connections
    advertise: str = ""  # where clients reach the native door; empty: where it listens
    allow_origins: tuple[str, ...] = ()  # web pages that may use REST beside the proxy's own, SCHEME://HOST:PORT
    connections_max: int = limits.CONNECTIONS_MAX
    unfinished_bytes_max: int = limits.UNFINISHED_BYTES_MAX
    frame_deadline_ms: int = limits.FRAME_DEADLINE_MS
    body_deadline_ms: int = limits.BODY_DEADLINE_MS
    control_bytes_max: int = limits.CONTROLS_BYTES_MAX
    drain_ms: int = 5_000

    def __post_init__(self) -> None:
        try:
            parse_addresses(self.servers)
        except ValidationError as error:
            raise ValidationError(f"servers: {error.message}", field="servers") from None
        for what in ("native", "http", "grpc", "advertise"):
            parse_address(getattr(self, what), what)
        if not (self.native or self.http or self.grpc):
            raise ValidationError("every door is off: give native, http or grpc an address", field="native")
        check_name(self.name, "name")
        for what, (low, high) in _BOUNDS.items():
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValidationError(
                    f"{what} is {value!r}: it must be a whole number from {low} to {high}", field=what
                )


_HOUR_MS: Final = 3_600_000
_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "connections_max": (1, limits.OPEN_FILES_WANTED),
    "unfinished_bytes_max": (2 * limits.FRAME_BYTES_MAX, 1024 * limits.GIB),
    "frame_deadline_ms": (1_000, _HOUR_MS),
    "body_deadline_ms": (1_000, _HOUR_MS),
    "control_bytes_max": (4 * limits.CONTROL_BYTES_MAX, 1024 * limits.GIB),
    "drain_ms": (0, _HOUR_MS),
}

__all__ = ["ProxySettings"]
