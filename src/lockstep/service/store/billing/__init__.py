"""Spending and stored sizes in the database."""
