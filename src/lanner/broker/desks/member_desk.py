"""What every call about members of groups begins with: does the cluster know members yet?"""

from __future__ import annotations

from lanner import features
from lanner.broker.desks.desk import Desk
from lanner.errors import NotSupported


class MemberDesk(Desk):
    def _check_members(self) -> None:
        """Refuse calls about members until every broker knows them."""
        level = self._engine.feature_level
        if level < features.MEMBERS:
            raise NotSupported(
                f"members of groups need feature level {features.MEMBERS}, and the cluster is at {level}: upgrade "
                "every broker, then run `lanner cluster upgrade`"
            )
