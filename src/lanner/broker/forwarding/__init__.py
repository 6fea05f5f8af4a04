"""The same calls for partitions that another broker leads: passed on by one hop, and asked again until a deadline."""
