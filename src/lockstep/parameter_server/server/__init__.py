"""What a parameter server keeps, and how it applies what workers push."""
