"""Provides a program's own Python environment: finds its source, builds it once per content, and caches it."""

from lockstep.runner.python_environment.building import EnvironmentBuilder
from lockstep.runner.python_environment.cache import EnvironmentCache, Lease
from lockstep.runner.python_environment.providing import provide_environment
from lockstep.runner.python_environment.sources import Source, SourceKind, find_source

__all__ = [
    "EnvironmentBuilder",
    "EnvironmentCache",
    "Lease",
    "Source",
    "SourceKind",
    "find_source",
    "provide_environment",
]
