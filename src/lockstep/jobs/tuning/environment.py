"""Defines what the program of a trial is told: its number, its parameters, and the metric that the search compares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast, final

from lockstep.errors import ConfigError
from lockstep.jobs.tuning.trials import Value

TRIAL_VARIABLE: Final = "LOCKSTEP_TRIAL"
"""The environment variable with the text of a `TrialEnvironment`."""
TRIAL_NUMBER_VARIABLE: Final = "CLOUD_ML_TRIAL_ID"
"""The environment variable with the trial's number, by AI Platform's name."""


@final
@dataclass(frozen=True, kw_only=True)
class TrialEnvironment:
    """What the program of a trial is told.

    Attributes:
        number: the trial's number, from 1.
        metric: the name of the metric, as in ``hyperparameterMetricTag``.
        parameters: the trial's parameters by name.
    """

    number: int
    metric: str
    parameters: Mapping[str, Value]

    def to_text(self) -> str:
        """Returns the value of `TRIAL_VARIABLE`, one line of JSON."""
        return json.dumps({"trial": self.number, "metric": self.metric, "parameters": dict(self.parameters)})

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self | None:
        """Reads what the program of a trial is told; None outside of a trial.

        Args:
            env: the environment variables.

        Raises:
            ConfigError: the variable has another form.
        """
        text = env.get(TRIAL_VARIABLE)
        if not text:
            return None
        try:
            document = cast("dict[str, Any]", json.loads(text))
            return cls(
                number=int(document["trial"]),
                metric=str(document["metric"]),
                parameters=dict(document["parameters"]),
            )
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                TRIAL_VARIABLE, received=text, allowed='{"trial": 1, "metric": "...", "parameters": {...}}'
            ) from None
