"""Reads the documents that request a job into frozen models, and resolves the gang of replicas they ask for."""
