"""The native door: the binary protocol of docs/protocol.md over TCP."""

from lanner.api.native.door import NativeDoor

__all__ = ["NativeDoor"]
