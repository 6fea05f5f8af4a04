"""Topics as Parquet files that can be trusted: written step by step, named by a manifest, checked, read, replayed.

`manifest`, `planning`, `ranges` and `verdict` are pure: they decide. `shelf` moves files and knows which file systems
rename in one step. `archiving`, `compaction`, `reading` and `auditing` let Spark do what was decided.
"""
