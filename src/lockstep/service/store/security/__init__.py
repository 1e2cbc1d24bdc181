"""Keys and secrets in the database."""
