"""Jobs, the lease, nodes and moves of replicas in the database."""
