"""Fakes and conformance suites, shipped for those who add a storage, a cluster engine or a strategy.

Nothing in the package imports this; pytest is needed to use it.
"""
