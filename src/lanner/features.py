"""Feature levels: what a release may write where brokers and clients of other releases read it.

A broker supports every level from LOWEST to HIGHEST. The metadata machine holds the level of the cluster: new kinds of
records, commands and fields that other brokers read are used only from the level on that brought them, so that brokers
can be upgraded one at a time. `lanner cluster upgrade` raises it once every broker supports more; it never falls.

What only the broker itself reads (its journal, its table) has versions of its own and does not wait for a level.
"""

from __future__ import annotations

from typing import Final

LOWEST: Final = 1  # 0.1.0
HIGHEST: Final = 2  # 0.2.0

IDENTITIES: Final = 2  # settles, commits and creates that are asked again get their first answer

assert 1 <= LOWEST <= IDENTITIES <= HIGHEST
