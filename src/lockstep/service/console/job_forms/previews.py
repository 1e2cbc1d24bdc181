"""What the form says about the job as it stands: whether it can be submitted, its price, its start, its config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import htpy as h

from lockstep.service.api.resources import timestamp
from lockstep.service.console.job_forms.documents import TRAINING, text_of
from lockstep.service.console.layout import duration, facts, when

PREVIEW: Final = "preview"
_NO_CODE: Final = "The job has no package and no container image: its module has to be installed where the job runs."


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a dry run said.

    Attributes:
        preview: the preview of the job, in the REST interface's form; None if the job cannot be read.
        problem: why the job would be refused; None if it would not.
        field: the field that the problem is about; None if about none.
    """

    preview: Mapping[str, Any] | None
    problem: str | None = None
    field: str | None = None


def preview_section(outcome: Outcome, *, live: Mapping[str, str], note: str = "") -> h.Element:
    """Returns the part of the page that changes as one types.

    Args:
        outcome: what the dry run said.
        live: the attributes with which it is asked for again.
        note: what has just been done; "" for nothing.
    """
    found = outcome.preview
    problem = outcome.problem
    return h.section(f"#{PREVIEW}", live)[
        h.h2["Dry run"],
        h.p(".done")[note] if note else None,
        h.p("#verdict", class_="error" if problem else "fine", role="status")[
            problem or "This job can be submitted.",
            [" ", h.a(href=f"#{outcome.field}")["To the field"]] if problem and outcome.field else None,
        ],
        h.p(".muted")["The price is known once the problem is mended."] if found is None else _content(found),
    ]


def first_replicas(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first replica of each role with the number of its kind: a job may have a thousand replicas.

    Args:
        resolved: a job's preview, or its resolved config, in the REST interface's form.
    """
    counts = Counter(_role(replica) for replica in resolved["replicas"])
    first = {_role(replica): replica for replica in reversed(resolved["replicas"])}
    replicas = [{**first[role], "replicasLikeIt": count} for role, count in counts.items()]
    return {"replicas": replicas, "passedOn": resolved["passedOn"]}


def _role(replica: Mapping[str, Any]) -> str:
    return replica["name"].partition("-")[0]


def _content(found: Mapping[str, Any]) -> h.Node:
    submitted = {key: found[key] for key in (TRAINING, "predictionInput", "labels") if found.get(key)}
    asked = found.get(TRAINING)
    image = (asked or {}).get("masterConfig", {}).get("imageUri")
    return [
        h.p(".note")[_NO_CODE] if asked is not None and not asked.get("packageUris") and image is None else None,
        facts(_facts(found)),
        [h.p(".note")["Ignored: ", line] for line in found["ignored"]],
        h.h3["Config, as it would be submitted"],
        h.pre(".config", tabindex="0")[text_of(submitted)],
        h.h3["Config, as it would be resolved"],
        h.pre(".config", tabindex="0")[text_of({**first_replicas(found), "outputs": found["outputs"]})],
    ]


def _facts(found: Mapping[str, Any]) -> list[tuple[str, h.Node]]:
    price, queue = found["price"], found.get("queue")
    rows: list[tuple[str, h.Node]] = [
        ("Price", f"{_cost(price['hour'])} an hour"),
        ("At most", f"{_cost(price['most'])} in {duration(price['maxRunningSeconds'])}"),
    ]
    if price["hour"]["unpriced"]:
        rows.append(("Not included", f"{', '.join(price['hour']['unpriced'])}: no published price"))
    if found.get("simulated"):
        rows.append(("Simulated", "simulated machines: nothing is owed"))
    rows.append(("Replicas", [h.div[line] for line in _machines(found["replicas"])]))
    if queue is not None:
        rows += [("Starts", _start(queue)), ("Needs", ", ".join(queue["needs"]))]
    if price["lists"]:
        rows.append(("Prices of", f"{' and '.join(price['lists'])}, {price['region']}"))
    return rows


def _cost(cost: Mapping[str, Any]) -> str:
    return "unknown" if cost["costUsd"] is None else f"${cost['costUsd']} ({cost['mlUnits']} ML units)"


def _machines(replicas: Sequence[Mapping[str, Any]]) -> list[str]:
    kinds = Counter(
        (_role(replica), replica["machine"], replica["vcpus"], replica["memoryGib"]) for replica in replicas
    )
    return [
        f"{count} x {role}: {machine} ({vcpus} vCPUs, {memory:g} GiB)"
        for (role, machine, vcpus, memory), count in kinds.items()
    ]


def _start(queue: Mapping[str, Any]) -> h.Node:
    if queue["startsNow"]:
        return "at once"
    latest = queue["startBySeconds"]
    text = f"position {queue['position']} in the queue: {queue['reason']}"
    return text if latest is None else [text, "; by ", when(timestamp(latest)), " at the latest"]
