"""The paths of the console, and what makes the page of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import htpy as h
from starlette.requests import Request
from starlette.responses import Response

from lockstep.service.console.asking import Ask
from lockstep.service.console.event_streams import Growth
from lockstep.service.console.pages import (
    access,
    cluster,
    compare,
    costs,
    data,
    health,
    job,
    job_artifacts,
    job_config,
    job_curves,
    job_events,
    job_labels,
    job_log,
    job_log_search,
    job_metrics,
    job_replicas,
    job_trials,
    jobs,
    keys,
    model_changes,
    model_watching,
    models,
    new_job,
    predicting,
    secrets,
    server_log,
)
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

Render = Callable[[Request, Session, ServiceContext], h.Node | Response]
"""Makes a page, or a part of one. Blocks."""
Follow = Callable[[Request, Session, ServiceContext, str], Growth]
"""Looks once for what comes after a position. Blocks."""
Stamp = Callable[[Request, Session, ServiceContext], int]
"""Counts the changes of what a part shows. Blocks."""

_JOB: Final = "/projects/{project}/jobs/{job_id}"
_NEW_JOB: Final = "/projects/{project}/jobs:new"
_MODEL: Final = "/projects/{project}/models/{model}"

VIEWS: Final[Mapping[str, Render]] = {
    "/jobs": jobs.show,
    _NEW_JOB: new_job.show,
    _JOB: job.show,
    f"{_JOB}/events": job_events.show,
    f"{_JOB}/replicas": job_replicas.show,
    f"{_JOB}/config": job_config.show,
    f"{_JOB}/log/first-error": job_log_search.show_first_error,
    f"{_JOB}/log/download": job_log_search.download,
    f"{_JOB}/artifacts/{{path:path}}": job_artifacts.download,
    "/compare": compare.show,
    "/models": models.show,
    _MODEL: models.show_model,
    f"{_MODEL}/versions/{{version}}/log": server_log.show,
    "/costs": costs.show,
    "/cluster": cluster.show,
    "/cluster/ended": cluster.show_ended,
    "/data": data.show,
    "/projects/{project}/data": data.show_data_set,
    "/access": access.show,
    "/health": health.show,
}
"""The pages."""
PARTS: Final[Mapping[str, tuple[Render, float]]] = {
    "/jobs/table": (jobs.show_table, 1.9),
    f"{_JOB}/status": (job.show_status, 1.0),
    f"{_JOB}/log": (job_log.show_more, 0.5),
    f"{_JOB}/metrics": (job_metrics.show, 3.0),
    f"{_JOB}/curves": (job_curves.show, 5.0),
    f"{_JOB}/artifacts": (job_artifacts.show, 1.0),
    f"{_JOB}/trials": (job_trials.show, 3.0),
    "/compare/curves": (compare.show_curves, 5.0),
    f"{_MODEL}/versions": (models.show_versions, 1.0),
    f"{_MODEL}/requests": (model_watching.show_requests, 3.0),
    f"{_MODEL}/servers": (model_watching.show_servers, 3.0),
    f"{_MODEL}/cost": (model_watching.show_cost, 5.0),
    costs.REPORT_PATH: (costs.show_report, 10.0),
    "/cluster/now": (cluster.show_now, 1.0),
    health.CHECKS_PATH: (health.show_checks, 0.5),
}
"""The parts that open pages ask for again and again, and how long each is used for all who look, in seconds."""
STREAMS: Final[Mapping[str, Follow]] = {
    f"{_JOB}/log/live": job_log.follow,
    f"{_MODEL}/versions/{{version}}/log/live": server_log.follow,
}
"""What open pages receive as it grows."""
STAMPS: Final[Mapping[str, Stamp]] = {"/jobs/table": jobs.count_changes}
"""Of the parts that stay the same for long: the number of changes of what they show, which is cheaper to read."""
CHANGES: Final[Mapping[str, Render]] = {
    f"{_JOB}/cancel": job.cancel,
    f"{_JOB}/labels": job_labels.change,
    _NEW_JOB: new_job.post,
    f"{_NEW_JOB}/look": new_job.look,
    "/models/deploy": model_changes.deploy,
    f"{_MODEL}/traffic": model_changes.split_traffic,
    f"{_MODEL}/default": model_changes.set_default,
    f"{_MODEL}/rollback": model_changes.rollback,
    f"{_MODEL}/undeploy": model_changes.undeploy,
    f"{_MODEL}/delete": model_changes.delete,
    "/access/keys": keys.create,
    "/access/keys/revoke": keys.revoke,
    "/access/secrets": secrets.put,
    "/access/secrets/remove": secrets.remove,
}
"""What changes something, or gets a form. The form is in ``request.state.form``."""
WITH_FILES: Final = frozenset({_NEW_JOB})
"""The paths of `CHANGES` whose forms may have files. Those of `ASKS` may."""
ASKS: Final[Mapping[str, tuple[str, Ask]]] = {
    f"{_MODEL}/try": ("GET", predicting.show),
    f"{_MODEL}/predict": ("POST", predicting.predict),
}
"""The methods and pages that wait for a prediction server, without a thread of the console."""
