"""Runs searches over hyperparameters: starts their trials as jobs, reads what they measure, and ends them."""
