"""The use-cases of a broker: the only door that the APIs call.

Every call names who calls, passes one authorisation and limits check (`desk`), and returns a typed value or raises an
error of the catalogue. Nothing here knows of HTTP, frames or gRPC; nothing here touches a disk.
"""

from __future__ import annotations

from lanner.broker.administration import Administration
from lanner.broker.consumption import Consumption
from lanner.broker.publications import Publications
from lanner.broker.streams import Streams


class Service(Publications, Consumption, Streams, Administration):
    """What a broker does for its callers."""
