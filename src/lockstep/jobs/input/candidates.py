"""Resolves a job's candidates: the alternative sets of machines to use if the requested ones are unavailable."""

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
    """Returns the number of sets of machines that a job accepts: the requested set and its candidates."""
    return 1 + len(asked.lockstep.candidates)


def candidate(asked: TrainingInput, *, number: int, source: str = "trainingInput") -> TrainingInput:
    """Returns a job's training input with one of the sets of machines that the job accepts.

    Args:
        asked: the training input as the user requested it.
        number: the set to use: 0 for the requested machines, 1 for the first candidate.
        source: the name of the input in error messages.

    Raises:
        ConfigError: If the candidate and the rest of the training input do not fit together.
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
    """Checks every candidate of a job.

    Raises:
        ConfigError: If a candidate does not fit the training input or changes its replicas, or if it names a machine
            that the catalogue does not have.
    """
    gang = resolve(asked, catalogue=catalogue)
    for number in range(1, num_candidates(asked)):
        other = resolve(candidate(asked, number=number), catalogue=catalogue)
        if [replica.name for replica in other] != [replica.name for replica in gang]:
            raise ConfigError(f"lockstep.candidates[{number - 1}]", allowed="machines for the same replicas")


def _changes(instead: Candidate) -> dict[str, Any]:
    return cast("dict[str, Any]", instead.to_json())
