"""The REST interface: the contract's paths and JSON for jobs, models and predictions, and Lockstep's own routes."""
