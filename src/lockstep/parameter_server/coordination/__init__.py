"""Closures between coordinator and workers: which worker has which closure, and how closures are sent."""
