"""Topic settings that a later release brought, among brokers that do not know them.

A release refuses a setting that it does not know, so nobody writes one before the level that brought it: below that
level it is refused here too, and at its default it is left out of commands and rows. So every broker comes to the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lanner import features
from lanner.errors import NotSupported
from lanner.model import TopicSettings

SETTING_LEVELS: Final[Mapping[str, int]] = {
    "staged_bytes_max": features.STAGES,
    "hold_for": features.STAGES,
    "hold_ms_max": features.STAGES,
    "hold_bytes_max": features.STAGES,
    "hold_full": features.STAGES,
}

_DEFAULTS: Final = TopicSettings().to_dict()


def check_settings(given: Mapping[str, Any], feature_level: int) -> None:
    """Refuse a setting that brokers of this level may not know."""
    for name, level in SETTING_LEVELS.items():
        if name in given and feature_level < level:
            raise NotSupported(
                f"{name} is a setting from feature level {level} on, and the cluster has {feature_level}: when every "
                "broker runs a release that supports it, run lanner cluster upgrade",
                field=name,
            )


def written(settings: TopicSettings) -> dict[str, Any]:
    """The settings as other brokers read them."""
    found = settings.to_dict()
    for name in SETTING_LEVELS:
        if found[name] == _DEFAULTS[name]:
            del found[name]
    return found
