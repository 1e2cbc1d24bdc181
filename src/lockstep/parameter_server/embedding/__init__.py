"""Embeddings whose tables are kept by the servers: a step has only the rows that its batch uses."""
