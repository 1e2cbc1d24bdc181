"""The deliveries of webhooks (Lockstep's own routes), and the states of webhooks as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Path

from lockstep.jobs.notifications.job_webhooks import MAX_JOB_WEBHOOKS
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import DeliveryListForm, JobWebhookForm, WebhookForm
from lockstep.service.api.requests import Context, Name, Project
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router
from lockstep.service.notifications.webhooks import WebhookState
from lockstep.service.store import Delivery, GangPart, WebhookRecord

router = make_router()
operators_router = make_router()
"""The routes of the operator's webhooks, outside of projects."""


@operators_router.get("/v1/webhooks/{webhook}/deliveries")
@requires_scope(Scope.OPERATOR)
def operator_deliveries(webhook: Name, context: Context) -> DeliveryListForm:
    """Returns the last deliveries of a webhook of the operator, the latest first."""
    return _delivery_list(context.webhooks.deliveries(webhook))


@router.get("/jobs/{job_id}/webhooks/{number}/deliveries")
@requires_scope(Scope.VIEWER)
def job_deliveries(
    project: Project, job_id: Name, number: Annotated[int, Path(ge=0, lt=MAX_JOB_WEBHOOKS)], context: Context
) -> DeliveryListForm:
    """Returns the last deliveries of a job's webhook, the latest first. Webhooks are numbered from 0."""
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
    return _delivery_list(context.webhooks.deliveries_of_job(job.uid, number=number))


def _delivery_list(deliveries: Sequence[Delivery]) -> DeliveryListForm:
    return {
        "deliveries": [
            {
                "time": timestamp(delivery.time_s),
                "messageId": delivery.message_id,
                "project": delivery.project,
                "jobId": delivery.job or None,
                "event": delivery.event,
                "state": delivery.state or None,
                "attempt": delivery.attempt,
                "status": delivery.status,
                "problem": delivery.problem,
                "seconds": delivery.duration_s,
            }
            for delivery in deliveries
        ]
    }


def webhook_form(state: WebhookState) -> WebhookForm:
    """Returns the state of a webhook of the operator as JSON."""
    return {"name": state.name, "place": state.display_url, "problem": state.problem, "since": state.since_s}


def job_webhook_form(webhook: WebhookRecord) -> JobWebhookForm:
    """Returns the state of a job's webhook as JSON."""
    return {
        "place": webhook.display_url or "",
        "problem": webhook.problem,
        "since": webhook.since_s,
        "numDropped": webhook.num_dropped,
    }
