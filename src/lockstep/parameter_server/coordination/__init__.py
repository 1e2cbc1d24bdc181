"""Closures between coordinator and workers: who has which, and how they travel."""
