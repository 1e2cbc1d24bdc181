"""Webhooks in the database."""
