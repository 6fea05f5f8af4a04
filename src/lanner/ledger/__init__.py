"""How the logs of all replica sets lie in one journal and one table: positions, saved point, live bytes, what may go.

`ledger` is the machine; `ports` says what it needs of a disk. The bytes are described in `records` (journal),
`chunk` and `rows` (table); what a start makes of them in `replay` and `tails`; how dead bytes go in `holdings` and
`rewriting`; how a snapshot takes a log's place in `building`.
"""

from lanner.ledger.building import BuildItem
from lanner.ledger.journal import Commit, CommitItem, EntryIn, Preparation, perform, perform_preparation
from lanner.ledger.ledger import Ledger, Recovery
from lanner.ledger.ports import FileMissing, Files, Table
from lanner.ledger.records import Location, read_entries, read_entry
from lanner.ledger.rewriting import Rewrite
from lanner.ledger.rows import FileInfo, FileState, SetState
from lanner.ledger.saving import Rows, Save
from lanner.ledger.setlog import Stored, Wanted

__all__ = [
    "BuildItem",
    "Commit",
    "CommitItem",
    "EntryIn",
    "FileInfo",
    "FileMissing",
    "FileState",
    "Files",
    "Ledger",
    "Location",
    "Preparation",
    "Recovery",
    "Rewrite",
    "Rows",
    "Save",
    "SetState",
    "Stored",
    "Table",
    "Wanted",
    "perform",
    "perform_preparation",
    "read_entries",
    "read_entry",
]
