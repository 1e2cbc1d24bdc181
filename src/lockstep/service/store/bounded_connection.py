"""A connection to PostgreSQL that does not wait for ever."""

from __future__ import annotations

from typing import Any, Final, final

import psycopg
from psycopg.pq import TransactionStatus
from typing_extensions import override

ANSWER_TIMEOUT_S: Final = 10.0
"""How long a server may be silent: one behind a network that swallows everything says nothing for ever."""


@final
class BoundedConnection(psycopg.Connection[Any]):
    """psycopg's connection, with a bound for each answer; one that is exceeded ends the connection.

    Attributes:
        answer_timeout_s: the bound.
    """

    answer_timeout_s: float = ANSWER_TIMEOUT_S

    @override
    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        bound_s = self.answer_timeout_s if timeout is None else timeout
        try:
            return super().wait(gen, interval, bound_s)
        except psycopg.OperationalError as error:
            if timeout is not None or self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            self.close()  # an answer that came late would be taken for that of another statement
            raise psycopg.OperationalError(f"no answer within {bound_s:.0f} s") from error
