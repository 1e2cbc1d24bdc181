"""What `benchmarks/serving.py` serves, the servers that do it, and the load that they get."""
