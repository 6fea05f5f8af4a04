"""The pipelines that `lanner pipeline new` writes."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

NAMES: Final = ("example", "dead-letters", "report")


def example_text(name: str = "example") -> str:
    return (files("lanner.spark.pipelines") / f"{name}.yaml").read_text(encoding="utf-8")
