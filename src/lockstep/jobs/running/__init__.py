"""What happens to a job once it is submitted: states, orders, supervision, ends, progress and metrics."""
