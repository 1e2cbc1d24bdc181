"""Exports a ``.keras`` file to formats that other programs run without Keras, and checks what was exported."""

from lockstep.serving.exporting.export import Export, export_model
from lockstep.serving.exporting.formats import Format

__all__ = ["Export", "Format", "export_model"]
