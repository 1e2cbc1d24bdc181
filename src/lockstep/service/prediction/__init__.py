"""Versions' prediction servers, and the models that jobs left."""
