"""Checkpoints of parameter servers.

They are cut while training goes on, and have the format of all other checkpoints.
"""
