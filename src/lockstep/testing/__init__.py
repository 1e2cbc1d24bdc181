"""Fakes, conformance suites and clusters of real processes, for those who add a storage, an engine or a strategy.

Nothing in the package imports this; pytest is needed to use it.
"""
