"""Webhooks: which there may be, and what is sent to them. Nothing is sent here."""
