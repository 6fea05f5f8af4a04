"""The REST door: FalconQ's routes as its users know them, a full `/v1` beside them, and the document of both.

Decode, call the service, encode; nothing else happens here. One table (`routes.py`) names every operation with its
shapes and errors: requests are routed and checked by it, and the OpenAPI document is made from it, so the two cannot
drift apart.
"""

from __future__ import annotations

from lanner.api.rest.app import build_app
from lanner.api.rest.door import RestDoor

__all__ = ["RestDoor", "build_app"]
