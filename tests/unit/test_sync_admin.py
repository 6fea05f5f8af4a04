"""The blocking client's operator part offers what the asynchronous one does, under the same names."""

from __future__ import annotations

import inspect

from lanner.client.admin import Admin
from lanner.sync_admin import Admin as BlockingAdmin


def methods(kind: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(method).parameters)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_offer_the_same_calls_with_the_same_arguments() -> None:
    assert methods(BlockingAdmin) == methods(Admin)
    assert "describe_cluster" in methods(Admin)
