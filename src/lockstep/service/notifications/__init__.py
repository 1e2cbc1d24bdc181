"""Notifies webhooks."""
