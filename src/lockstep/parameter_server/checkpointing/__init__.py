"""Checkpoints of parameter servers: cut while training goes on, like those of every strategy."""
