"""Cluster engines on Ray Core."""
