"""Feature levels: what a release may write where brokers and clients of other releases read it.

A broker supports every level from LOWEST to HIGHEST. The metadata machine holds the level of the cluster: new kinds of
records, commands and fields that other brokers read are used only from the level on that brought them, so that brokers
can be upgraded one at a time. `lanner cluster upgrade` raises it once every broker supports more; it never falls.

A record that a replica does not know was written by a release that is newer, so skipping it would make that replica
another one than the rest: it stops there instead, and goes on from there with a release that knows it. Fields that a
release adds at the end of a known record need no such stop: nobody writes them before the level that brought them, and
no cluster reaches it with a broker that would overlook them.

What only the broker itself reads (its journal, its table) has versions of its own and does not wait for a level.
"""

from __future__ import annotations

from typing import Final

LOWEST: Final = 1
HIGHEST: Final = 6
RELEASES: Final = {1: "0.1.0", 2: "0.2.0", 3: "0.3.0", 4: "0.4.0", 5: "0.5.0", 6: "0.6.0"}  # which brought a level

IDENTITIES: Final = 2  # settles, commits and creates that are asked again get their first answer
STAGES: Final = 3  # staged publish, lanes and dead letters as streams, archive holds
CALLERS: Final = 4  # a call that one broker passes on to another names who made it
PRODUCER_FLOORS: Final = 4  # what a partition with too many producers forgot is refused, not stored again
GROUPS: Final = 4  # the records of members of groups, assignments and fences; nobody writes them before
MEMBERS: Final = 5  # the calls by which members join, which do write them
REPAIRS: Final = 5  # a damaged copy that was begun to be replaced is replaced, whatever is cancelled or fails
COPIES: Final = 6  # replicas that topics lack are made by themselves when a broker comes (back)

assert 1 <= LOWEST <= IDENTITIES <= STAGES <= min(PRODUCER_FLOORS, GROUPS) <= min(MEMBERS, REPAIRS) <= COPIES <= HIGHEST
assert set(RELEASES) == set(range(1, HIGHEST + 1))

START_NEWER: Final = (
    f"this is release {RELEASES[HIGHEST]}: start the broker with the newest release that the cluster has run, or later"
)
