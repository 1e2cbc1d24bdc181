"""Record files: their framing, names and indexes, and reading their records by number."""
