"""What a worker sends to the servers after each step or closure, and what it receives."""
