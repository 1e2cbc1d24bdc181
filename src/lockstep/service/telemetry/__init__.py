"""Reads logs and metrics of jobs from the bucket."""
