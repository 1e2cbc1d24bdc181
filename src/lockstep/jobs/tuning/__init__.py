"""Decides about searches over hyperparameters: which trial is next, and which ones stop early. Pure functions."""

from lockstep.jobs.tuning.early_stopping import find_stoppable
from lockstep.jobs.tuning.environment import TRIAL_NUMBER_VARIABLE, TRIAL_VARIABLE, TrialEnvironment
from lockstep.jobs.tuning.proposals import propose
from lockstep.jobs.tuning.space import arguments_of, num_trials, parse_value
from lockstep.jobs.tuning.studies import study_of
from lockstep.jobs.tuning.trials import Measurement, TrialResult, TrialState, Value, best_first, is_better

__all__ = [
    "TRIAL_NUMBER_VARIABLE",
    "TRIAL_VARIABLE",
    "Measurement",
    "TrialEnvironment",
    "TrialResult",
    "TrialState",
    "Value",
    "arguments_of",
    "best_first",
    "find_stoppable",
    "is_better",
    "num_trials",
    "parse_value",
    "propose",
    "study_of",
]
