"""Parses and applies the filters of lists."""
