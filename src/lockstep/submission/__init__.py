"""What a submitter sends, for the command line and Python: packed and staged code, and the job's document."""
