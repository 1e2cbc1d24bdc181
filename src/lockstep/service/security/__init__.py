"""API keys, secrets, and the user ids and folders of programs."""
