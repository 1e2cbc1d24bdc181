"""What all benchmarks share: environments of peers, sides as processes, rounds in turn, tables and figures."""
