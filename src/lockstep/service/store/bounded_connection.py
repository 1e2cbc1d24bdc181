"""A connection to PostgreSQL with a timeout for each response."""

from __future__ import annotations

from typing import Any, Final, final

import psycopg
from psycopg.pq import TransactionStatus
from typing_extensions import override

ANSWER_TIMEOUT_S: Final = 10.0
"""How long a server may be silent. If the network drops all packets, it would be silent forever."""


@final
class BoundedConnection(psycopg.Connection[Any]):
    """A psycopg connection with a timeout for each response. A timeout closes the connection.

    Attributes:
        answer_timeout_s: the timeout, in seconds.
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
            self.close()  # a late response would be mistaken for that of another statement
            raise psycopg.OperationalError(f"no answer within {bound_s:.0f} s") from error
