"""Routes about costs."""
