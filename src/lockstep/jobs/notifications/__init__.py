"""Defines webhooks: which ones are allowed, and what is sent to them. Sending happens elsewhere."""
