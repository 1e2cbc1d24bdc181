"""Data sets that can be packed as they are: one file each, and the registry of their names."""

from lockstep.data.sources.base import AbstractSource, Split
from lockstep.data.sources.registry import SOURCES, open_source

__all__ = ["SOURCES", "AbstractSource", "Split", "open_source"]
