"""The sides of `benchmarks/parameter_server.py`: the same roles on loopback, each a process of its own."""
