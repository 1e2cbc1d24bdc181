"""Routes about keys, secrets and policies."""
