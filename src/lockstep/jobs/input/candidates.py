"""What a job would take instead, where the machines that it asks for cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from lockstep.errors import ConfigError
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.input.spec import Candidate, TrainingInput
from lockstep.jobs.machines.catalogue import Catalogue

_CONFIGS: Final = ("masterConfig", "workerConfig", "parameterServerConfig", "evaluatorConfig")


def num_candidates(asked: TrainingInput) -> int:
    """Returns how many sets of machines a job would take, the one that it asks for included."""
    return 1 + len(asked.lockstep.candidates)


def candidate(asked: TrainingInput, *, number: int, source: str = "trainingInput") -> TrainingInput:
    """Returns what a job asks for with one of its sets of machines.

    Args:
        asked: what it asks for.
        number: which: 0 is what it asks for, 1 the first of its candidates.
        source: what to call it in errors.

    Raises:
        ConfigError: what is asked for and the candidate do not fit together.
    """
    if number == 0:
        return asked
    document = asked.to_json()
    for key, value in _changes(asked.lockstep.candidates[number - 1]).items():
        if key in _CONFIGS:
            before = cast("Mapping[str, Any]", document.get(key, {}))
            document[key] = {**before, **value}
        else:
            document[key] = value
    return parse_training_input({"trainingInput": document}, source=f"{source}.lockstep.candidates[{number - 1}]")


def check_candidates(asked: TrainingInput, *, catalogue: Catalogue) -> None:
    """Looks at every candidate of a job.

    Raises:
        ConfigError: one does not fit, or names a machine that the catalogue does not have.
    """
    gang = resolve(asked, catalogue=catalogue)
    for number in range(1, num_candidates(asked)):
        other = resolve(candidate(asked, number=number), catalogue=catalogue)
        if [replica.name for replica in other] != [replica.name for replica in gang]:
            raise ConfigError(f"lockstep.candidates[{number - 1}]", allowed="machines for the same replicas")


def _changes(instead: Candidate) -> dict[str, Any]:
    return cast("dict[str, Any]", instead.to_json())
