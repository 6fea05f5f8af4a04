"""An old release: machines that do not know the records which a later feature level brought."""

from __future__ import annotations

from typing import Any

from lanner import features
from lanner.broker.replicas.engine import Engine
from lanner.errors import UnknownRecord
from lanner.partition import Partition
from lanner.partition.records import DECISION_KIND, DeadNumbered, decode_decision


def forget(engine: Engine) -> None:
    """Let the machines of an engine know no more than the old release does."""
    load = engine._load

    def load_old(set_id: int) -> Any:
        machine: Any = load(set_id)
        if isinstance(machine, Partition):
            apply = machine.apply

            def apply_known(index: int, payload: bytes | None) -> Any:
                if payload and payload[0] == DECISION_KIND and index > machine.applied_index:
                    facts = decode_decision(payload).facts
                    if any(isinstance(fact, DeadNumbered) for fact in facts):
                        raise UnknownRecord(f"entry {index} is of feature level {features.STAGES}")
                return apply(index, payload)

            machine.apply = apply_known  # type: ignore[method-assign]
        return machine

    engine._load = load_old  # type: ignore[method-assign]


__all__ = ["forget"]
