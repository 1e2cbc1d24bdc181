"""The state of a parameter server, and how it applies the pushes of workers."""
