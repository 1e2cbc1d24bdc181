"""Routes for keys and secrets."""
