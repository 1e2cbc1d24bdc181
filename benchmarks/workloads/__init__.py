"""What `benchmarks/service.py` has the service do: a module a workload, and what they share."""
