"""Batch prediction: files of instances in, files of predictions out. Each replica of a job runs the worker.

The service starts ``python -m lockstep.serving.batch`` as the program of the job. The leading replica lists the files
and divides them into shards; every replica predicts some of these. A shard's files appear whole or not at all, and a
shard that is complete is not predicted again.
"""
