"""Fakes, conformance suites and clusters of real processes, for new storages, engines and strategies.

No other room of the package imports this one. Using it requires pytest.
"""
