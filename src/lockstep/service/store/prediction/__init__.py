"""Models, versions and operations in the database."""
