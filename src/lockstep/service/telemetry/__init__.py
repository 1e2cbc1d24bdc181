"""Jobs' logs and metrics, read from the bucket."""
