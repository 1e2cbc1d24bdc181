"""Scripts of `tf.keras` and `tf.distribute`, rewritten for Keras 3 and Lockstep by one table of names.

Nothing that a script says is run. What cannot be rewritten stays, with a comment before it.
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
