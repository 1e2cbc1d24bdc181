"""Data sets that can be packed: by name, and by path: images, tables, arrays. One file each, and their registry."""

from lockstep.data.sources.base import AbstractPart, AbstractSource, Item, Split
from lockstep.data.sources.registry import SOURCES, open_source
from lockstep.data.sources.transcoding import Transcoding

__all__ = ["SOURCES", "AbstractPart", "AbstractSource", "Item", "Split", "Transcoding", "open_source"]
