"""The last deliveries of each webhook in the database: what was sent when, and how the receiver answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, final

from sqlalchemy import Connection, delete, insert, select

from lockstep.service.store.tables import WEBHOOK_DELIVERIES

NUM_DELIVERIES_MAX: Final = 50
"""The number of deliveries that are kept of each webhook."""


@final
@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One attempt to deliver a message. It has neither the URL nor the body nor the signature.

    Attributes:
        webhook: the name of the webhook; for a job's webhook, the job's uid and a number.
        message_id: the message's permanent name, as in its header ``webhook-id``.
        project: the project of the event.
        job: the job of the event; empty for an alert of a budget.
        event: the kind of the event.
        state: the state of the job after the event; empty for an alert of a budget.
        time_s: the time of the attempt, in seconds since 1970 UTC.
        attempt: the number of the attempt at this message, from 1.
        status: the HTTP status of the answer; None if there was none.
        problem: the reason why it failed; None if the message was accepted.
        duration_s: the duration of the attempt, in seconds.
    """

    webhook: str
    message_id: str
    project: str
    job: str
    event: str
    state: str
    time_s: float
    attempt: int
    status: int | None
    problem: str | None
    duration_s: float


def add_deliveries(connection: Connection, deliveries: Sequence[Delivery]) -> None:
    """Records deliveries of one webhook, and removes those that are more than `NUM_DELIVERIES_MAX` back."""
    connection.execute(insert(WEBHOOK_DELIVERIES), [asdict(delivery) for delivery in deliveries])
    is_of_webhook = WEBHOOK_DELIVERIES.c.webhook == deliveries[0].webhook
    first_old = (
        select(WEBHOOK_DELIVERIES.c.seq)
        .where(is_of_webhook)
        .order_by(WEBHOOK_DELIVERIES.c.seq.desc())
        .offset(NUM_DELIVERIES_MAX)
        .limit(1)
        .scalar_subquery()
    )
    connection.execute(delete(WEBHOOK_DELIVERIES).where(is_of_webhook, WEBHOOK_DELIVERIES.c.seq <= first_old))


def read_deliveries(connection: Connection, webhook: str) -> list[Delivery]:
    """Returns the kept deliveries of a webhook, the latest first."""
    columns = [column for column in WEBHOOK_DELIVERIES.c if column.name != "seq"]
    query = select(*columns).where(WEBHOOK_DELIVERIES.c.webhook == webhook).order_by(WEBHOOK_DELIVERIES.c.seq.desc())
    return [Delivery(**row) for row in connection.execute(query).mappings()]
