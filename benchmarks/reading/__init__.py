"""The sides of `benchmarks/records.py`, each a process of its own."""
