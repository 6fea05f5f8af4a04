"""HOST:PORT, read and written."""

from __future__ import annotations

from lanner.errors import ValidationError


def parse_address(text: str, what: str) -> tuple[str, int] | None:
    """HOST:PORT as a pair; empty means that this door stays shut."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65_535:
        raise ValidationError(f"{what} is {text!r}: give HOST:PORT, such as 127.0.0.1:7400", field=what)
    return host.strip("[]") or "127.0.0.1", int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


__all__ = ["join_address", "parse_address"]
