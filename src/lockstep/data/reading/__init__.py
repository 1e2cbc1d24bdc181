"""Reading: batches of records in a reproducible order, made in parallel and returned in order."""
