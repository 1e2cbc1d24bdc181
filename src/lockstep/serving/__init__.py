"""The prediction server: a loaded model, a batcher, and the HTTP interface around them.

The service starts ``python -m lockstep.serving`` as the program of a job. This module imports neither JAX nor Keras.
"""

from __future__ import annotations

from typing import Final

SERVER_TOKEN: Final = "LOCKSTEP_SERVER_TOKEN"  # noqa: S105 (a variable's name)
"""The environment variable with the bearer token that a prediction server requires."""
