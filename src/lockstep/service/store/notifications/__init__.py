"""The queues of webhooks in the database."""
