"""Routes for jobs, their replicas and nodes."""
