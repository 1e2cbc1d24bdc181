"""``lockstep.tune``: submits a search over the hyperparameters of a script, a module or a function."""

from __future__ import annotations

from typing import Any, Literal, overload

from typing_extensions import Unpack

from lockstep.client.job import Job
from lockstep.submission.programs import Program
from lockstep.submission.spaces import Space, read_space
from lockstep.submission.submitting import SubmitOptions, read_config, submit


class TuneOptions(SubmitOptions, total=False):  # noqa: D101 - the arguments of `tune`, which explains them
    max_parallel_trials: int
    max_failed_trials: int
    metric: str | None
    goal: Literal["MAXIMIZE", "MINIMIZE"]
    algorithm: Literal["ALGORITHM_UNSPECIFIED", "GRID_SEARCH", "RANDOM_SEARCH"]
    early_stopping: Literal["MEDIAN", "ASHA"] | None
    min_measurements: int | None
    reduction_factor: int | None
    resume: str | None
    seed: int


@overload
def tune(
    program: Program, space: Space, *, max_trials: int, dry_run: Literal[False] = ..., **options: Unpack[TuneOptions]
) -> Job: ...
@overload
def tune(
    program: Program, space: Space, *, max_trials: int, dry_run: Literal[True], **options: Unpack[TuneOptions]
) -> dict[str, Any]: ...
def tune(
    program: Program,
    space: Space,
    *,
    max_trials: int,
    max_parallel_trials: int = 1,
    max_failed_trials: int = 0,
    metric: str | None = None,
    goal: Literal["MAXIMIZE", "MINIMIZE"] = "MAXIMIZE",
    algorithm: Literal["ALGORITHM_UNSPECIFIED", "GRID_SEARCH", "RANDOM_SEARCH"] = "ALGORITHM_UNSPECIFIED",
    early_stopping: Literal["MEDIAN", "ASHA"] | None = None,
    min_measurements: int | None = None,
    reduction_factor: int | None = None,
    resume: str | None = None,
    seed: int = 0,
    dry_run: bool = False,
    **options: Unpack[SubmitOptions],
) -> Job | dict[str, Any]:
    """Submits a search over hyperparameters, and returns its job without waiting for it.

    For example::

        def objective(rate, units):
            model = make_model(units)
            model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", ["accuracy"])
            history = model.fit(x, y, validation_split=0.1, epochs=3)
            return history.history["val_accuracy"][-1]

        search = lockstep.tune(objective, {"rate": (1e-4, 1e-1, "log"), "units": [32, 64, 128]}, max_trials=20)
        search.wait()
        search.best_trial.parameters

    Each trial is a job of its own, on the machines that the options name. A function gets the parameters as keyword
    arguments, and returns the value that is compared. A script or module gets them as flags, such as ``--rate=0.01``;
    it calls `lockstep.report`, or writes the metric with a TensorBoard callback. See docs/tuning.md.

    Args:
        program: the path of a script, which ends with ``.py``; the name of a module; or a function.
        space: the parameters and their values: a dictionary with, for each name, a list of values,
            ``(lowest, highest)``, ``(lowest, highest, "log")`` or a distribution of Optuna; or the contract's
            ``params``; or KerasTuner's ``HyperParameters``.
        max_trials: the maximum number of trials.
        max_parallel_trials: the maximum number of trials at a time.
        max_failed_trials: the number of failed trials that ends the search; 0 lets the service decide.
        metric: the name of the metric, as in TensorBoard: a tag such as ``val_loss``, or a run and a tag such as
            ``validation/epoch_accuracy``; by default, what the function returns or `lockstep.report` reports.
        goal: MAXIMIZE or MINIMIZE.
        algorithm: ALGORITHM_UNSPECIFIED, which is Bayesian optimization, GRID_SEARCH or RANDOM_SEARCH.
        early_stopping: the rule by which unpromising trials are stopped: MEDIAN or ASHA; by default, none are.
        min_measurements: the number of measurements before which no trial is stopped; 1 by default.
        reduction_factor: of ASHA: of how many trials on a rung one continues; 4 by default.
        resume: the name of an earlier search of the project whose trials are taken into account.
        seed: the seed of the proposals.
        dry_run: whether to return a preview of the search instead.
        **options: the other arguments of `lockstep.submit`: `name`, `args`, `kwargs`, `machine_type`, ...

    Returns:
        The job of the search, with `Job.trials`, `Job.best_trial` and `Job.study`. With `dry_run`, the preview.

    Raises:
        InvalidInputError: an argument is not valid, or a function uses something that a job cannot have.
        ConfigError: the parameters do not follow the rules of the contract.
        MissingInputError: a file, folder or module does not exist.
        ConflictError: the project has a job of this name.
        UnavailableError: the service does not respond, or none runs.
        StorageWriteError: the code could not be uploaded.
    """
    asked = read_config(options.get("config"))
    document: dict[str, Any] = asked.training_input.to_json()
    search = {
        "goal": goal,
        "params": read_space(space),
        "maxTrials": max_trials,
        "maxParallelTrials": max_parallel_trials,
        "maxFailedTrials": max_failed_trials,
        "hyperparameterMetricTag": metric,
        "resumePreviousJobId": resume,
        "enableTrialEarlyStopping": early_stopping is not None,
        "algorithm": algorithm,
    }
    document["hyperparameters"] = {key: value for key, value in search.items() if value is not None}
    rules = {
        "seed": seed,
        "earlyStopping": early_stopping,
        "minMeasurements": min_measurements,
        "reductionFactor": reduction_factor,
    }
    own: dict[str, Any] = document.get("lockstep", {})
    own["tuning"] = {**own.get("tuning", {}), **{key: value for key, value in rules.items() if value is not None}}
    document["lockstep"] = own
    name = {} if asked.job_id is None else {"jobId": asked.job_id}
    config = {"trainingInput": document, "labels": dict(asked.labels), **name}
    settled: dict[str, Any] = {**options, "config": config}
    return submit(program, dry_run=dry_run, **settled)
