"""Handles jobs after submission: states, orders, supervision, ends, progress and metrics."""
