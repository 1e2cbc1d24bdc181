"""Jobs, their replicas and moves, the lease, and nodes in the database."""
