"""Files of records: their framing, names and indexes, and the records in them by number."""
