"""Keras's ``fit`` with workers and parameter servers: the coordinator's part and the worker's part."""
