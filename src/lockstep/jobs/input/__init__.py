"""What a job asks for: its documents, read once into frozen models, and the gang that follows."""
