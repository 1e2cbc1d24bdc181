"""Custom training loops: a step lifted out of stateful code, run once a replica, and what its values become."""
