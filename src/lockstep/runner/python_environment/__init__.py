"""A program's own Python environment: found in its folder, built once for each content, kept on the node."""

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
