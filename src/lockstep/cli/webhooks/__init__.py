"""``lockstep webhooks``: what was delivered to webhooks."""

from __future__ import annotations

from lockstep.cli.help import App
from lockstep.cli.webhooks import deliveries

app = App("Show what was delivered to webhooks.", name="webhooks")
app.command("deliveries")(deliveries.show_deliveries)
