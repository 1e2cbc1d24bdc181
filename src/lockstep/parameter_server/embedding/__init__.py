"""Embeddings whose tables lie on the servers: a step has the rows that its batch uses, and no others."""
