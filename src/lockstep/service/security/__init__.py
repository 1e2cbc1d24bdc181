"""Keys, secrets, user ids of programs and their folders."""
