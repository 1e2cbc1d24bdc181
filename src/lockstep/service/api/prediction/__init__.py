"""Routes about models, versions, operations and predictions."""
