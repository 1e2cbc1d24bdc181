"""API keys and secrets in the database."""
