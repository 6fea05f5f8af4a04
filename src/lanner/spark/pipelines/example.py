"""The pipelines that `lanner pipeline new` writes."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

NAMES: Final = ("example", "dead-letters", "report")
SERVERS: Final = "localhost:7400"  # as the files have it


def example_text(name: str = "example", servers: str = SERVERS) -> str:
    """An example whose brokers are at these addresses."""
    text = (files("lanner.spark.pipelines") / f"{name}.yaml").read_text(encoding="utf-8")
    return text.replace(f"servers: {SERVERS}", f"servers: {servers}")
