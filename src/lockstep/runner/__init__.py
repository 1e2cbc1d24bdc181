"""The process beside each replica's program: it starts the program, keeps its logs, measures it and stops it.

An engine starts ``python -m lockstep.runner``, writes one `ReplicaOrder` as a line of JSON to its standard input and
reads one `ReplicaStatus` a line from its standard output (both of `lockstep.jobs.running.orders`); the last one has the
phase ``ended``. A line ``stop`` on the standard input, or its end, stops the program: a runner never outlives the
engine that started it.
"""
