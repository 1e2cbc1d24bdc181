"""Runs beside each replica's program: starts the program, collects its log, measures it and stops it.

An engine starts ``python -m lockstep.runner`` and writes one `ReplicaOrder` as a line of JSON to its standard input. It
reads one `ReplicaStatus` per line from the runner's standard output; the last one has the phase ``ended``. Both are
defined in `lockstep.jobs.running.orders`. A line ``stop`` on the standard input, or its end, stops the program: a
runner never outlives the engine that started it.
"""
