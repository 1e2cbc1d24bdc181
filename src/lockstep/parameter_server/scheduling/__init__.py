"""Loops of the user's own: what `ClusterCoordinator` does of them in the coordinator, and what in a worker."""
