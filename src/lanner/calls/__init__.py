"""The calls that a broker serves: one struct, one row in one table for each, and how answers of several are merged.

What a call looks like on the wire is in `wire`; what serving it means is the broker's business. This room knows who may
make a call, where it is served, whether it may be asked again, how it is split over brokers and how their answers
become one. It knows no socket, no clock and no broker, so a door, a broker and a client can all use it.
"""

from lanner.calls.asking import ANONYMOUS, Answer, Asker, Bulk, Connection, Identity
from lanner.calls.rows import Action, Fresh, Part, Repeat, Row, Where
from lanner.calls.table import ROWS, Handlers, Ways, row_of
from lanner.wire.messages import AnyCall, Call

__all__ = [
    "ANONYMOUS",
    "ROWS",
    "Action",
    "Answer",
    "AnyCall",
    "Asker",
    "Bulk",
    "Call",
    "Connection",
    "Fresh",
    "Handlers",
    "Identity",
    "Part",
    "Repeat",
    "Row",
    "Ways",
    "Where",
    "row_of",
]
