"""Reads jobs' logs and metrics from the bucket."""
