"""Routes for models, versions, operations and predictions."""
