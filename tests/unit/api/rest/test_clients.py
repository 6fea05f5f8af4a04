"""Who is connected, behind REST."""

from __future__ import annotations

import httpx
import pytest

from lanner.calls import Answer
from lanner.wire.members import ClientList, ClientState, ClientUse, ListClients
from tests.unit.api.rest.conftest import FakeService

USES = [ClientUse("g", "orders", "m", "id", 3, 99, 7), ClientUse("h", "orders", "m", leased=-1)]


@pytest.fixture
def listed(service: FakeService) -> FakeService:
    found = ClientList([ClientState("node", "one", 4, "grpc", "h:1", "worker", 5, 6, USES)], ("node", 4), ["two"])
    service._list_clients = lambda call: Answer(found)  # type: ignore[attr-defined]
    return service


async def test_a_page_of_clients_says_where_the_next_begins_and_which_brokers_are_missing(
    http: httpx.AsyncClient, listed: FakeService
) -> None:
    answer = await http.get("/v1/clients")
    assert answer.status_code == 200
    found = answer.json()
    assert found["next"] == "node/4" and found["missing"] == ["two"]
    (client,) = found["clients"]
    first, second = client.pop("uses")
    assert client == {
        "node_id": "node",
        "broker": "one",
        "number": 4,
        "door": "grpc",
        "address": "h:1",
        "client": "worker",
        "since_ms": 5,
        "age_ms": 6,
    }
    assert first["leased"] == 3 and first["leased_until_ms"] == 99 and first["idle_ms"] == 7
    assert "leased" not in second and "leased_until_ms" not in second, "it was not counted"


async def test_the_query_becomes_the_call(http: httpx.AsyncClient, listed: FakeService) -> None:
    await http.get("/v1/clients", params={"group": "billing", "after": "node/4", "limit": 7})
    assert listed.asked("list_clients") == [ListClients("billing", ("node", 4), 7)]


@pytest.mark.parametrize("query", [{"after": "node"}, {"after": "n/x"}, {"limit": 0}, {"group": "no way"}, {"x": 1}])
async def test_a_query_that_makes_no_sense_is_refused(
    http: httpx.AsyncClient, listed: FakeService, query: dict[str, str]
) -> None:
    assert (await http.get("/v1/clients", params=query)).status_code == 400
    assert not listed.asked("list_clients")
