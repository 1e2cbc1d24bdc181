"""Routes for metrics."""
