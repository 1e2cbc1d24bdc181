"""Loops of the user's own, by `ClusterCoordinator`: the coordinator's part and the worker's part."""
