"""Sends webhooks."""
