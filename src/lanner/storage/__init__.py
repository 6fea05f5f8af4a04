"""The ledger's two ports, Files and Table: on disk (segment files, LMDB) and in memory; and the data directory."""

from lanner.storage.directory import DataDirectory, open_directory
from lanner.storage.disk import DiskFiles, LmdbTable
from lanner.storage.memory import MemoryFiles, MemoryTable

__all__ = ["DataDirectory", "DiskFiles", "LmdbTable", "MemoryFiles", "MemoryTable", "open_directory"]
