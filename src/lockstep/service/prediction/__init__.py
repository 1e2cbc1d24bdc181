"""The prediction servers of versions, and the models that jobs saved."""
