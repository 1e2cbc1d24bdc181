"""Sources: the data sets that can be packed, by name or by path: images, tables and arrays."""

from lockstep.data.sources.base import AbstractPart, AbstractSource, Item, Split
from lockstep.data.sources.registry import SOURCES, open_source
from lockstep.data.sources.transcoding import Transcoding

__all__ = ["SOURCES", "AbstractPart", "AbstractSource", "Item", "Split", "Transcoding", "open_source"]
