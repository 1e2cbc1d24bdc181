"""Routes about metrics."""
