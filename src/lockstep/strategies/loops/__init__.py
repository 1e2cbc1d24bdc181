"""Custom training loops: compiles stateful steps, runs them on replicas, and reduces the replicas' results."""
