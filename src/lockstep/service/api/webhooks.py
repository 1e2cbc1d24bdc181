"""Converts the states of webhooks to JSON."""

from __future__ import annotations

from lockstep.service.api.forms import JobWebhookForm, WebhookForm
from lockstep.service.notifications.webhooks import WebhookState
from lockstep.service.store import WebhookRecord


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
