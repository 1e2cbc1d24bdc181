"""The two sides of ``gpu.py``, and what they share."""
