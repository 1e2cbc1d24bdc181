"""Reading: batches of records in an order that repeats exactly, made side by side and handed out in turn."""
