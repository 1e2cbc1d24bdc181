"""Routes about jobs, their replicas and nodes."""
