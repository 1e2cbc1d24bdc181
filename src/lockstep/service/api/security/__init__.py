"""Routes for keys, secrets and policies."""
