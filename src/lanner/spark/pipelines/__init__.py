"""Pipelines: a YAML file that names sources, queries and sinks, run as streaming queries of one Spark session.

`document`, `checking`, `meaning`, `plan` and `restarts` are pure: they read the file and find every mistake in it, with
its line, before Spark is started. `building` and `running` let Spark do what the file says; `status` is how another
terminal learns of it.
"""
