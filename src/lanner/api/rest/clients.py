"""`/v1/clients`: who is connected."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from lanner.api.rest.cluster_shapes import ClientReply, ClientsQuery, ClientsReply, ClientUseReply
from lanner.api.rest.operations import Call
from lanner.api.rest.shapes import NoBody
from lanner.model import check_name
from lanner.wire.members import ClientState, ClientUse, ListClients


async def list_clients(call: Call[NoBody, ClientsQuery]) -> ClientsReply:
    query = call.query
    group = "" if isinstance(query.group, UnsetType) else check_name(query.group, "group")
    after = None
    if not isinstance(query.after, UnsetType):
        node_id, _, number = query.after.rpartition("/")
        after = (node_id, int(number))
    found = (await call.ask(ListClients(group, after, query.limit))).control
    return ClientsReply(
        clients=[_client(one) for one in found.clients],
        next=UNSET if found.next is None else "{}/{}".format(*found.next),
        missing=found.missing,
    )


def _client(found: ClientState) -> ClientReply:
    return ClientReply(
        node_id=found.node_id,
        broker=found.broker,
        number=found.number,
        door=found.door,
        address=found.address,
        client=found.client,
        since_ms=found.since_ms,
        age_ms=found.age_ms,
        uses=[_use(use) for use in found.uses],
    )


def _use(found: ClientUse) -> ClientUseReply:
    return ClientUseReply(
        group=found.group,
        topic=found.topic,
        member=found.member,
        member_id=found.member_id,
        leased=found.leased if found.leased >= 0 else UNSET,
        leased_until_ms=found.until_ms or UNSET,
        idle_ms=found.idle_ms,
    )
