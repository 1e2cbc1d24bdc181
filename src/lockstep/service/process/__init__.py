"""The service's process: what keeps it running, and who may start or stop it."""
