"""Rewrites scripts of `tf.keras` and `tf.distribute` for Keras 3 and Lockstep, by one table of names.

No code of a script is run. Code that cannot be rewritten stays as it is, with a comment before it.
"""

from lockstep.migration.files import Migrated, find_scripts, migrate_file
from lockstep.migration.remarks import Remark
from lockstep.migration.rewriting import Rewritten, rewrite
from lockstep.migration.symbols import documented_tables

__all__ = [
    "Migrated",
    "Remark",
    "Rewritten",
    "documented_tables",
    "find_scripts",
    "migrate_file",
    "rewrite",
]
