"""Keras's ``fit`` over workers and parameter servers: what the coordinator does of it, and what a worker."""
