"""`lanner report`: what a topic carried, by priority and time window, as Parquet and as one page with plots.

`figures`, `axes`, `plots` and `page` are pure: numbers in, text out. `reporting` lets Spark count and writes the files.
"""
