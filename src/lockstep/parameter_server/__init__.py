"""Parameter servers: parameters that are kept and updated by servers, and workers that push when they are ready."""
