"""A job of the service, for programs and notebooks."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

from lockstep.client import job_outputs, profiles
from lockstep.client.addresses import DEFAULT_PROJECT, PROJECT_VARIABLE
from lockstep.client.client import Client
from lockstep.client.displays import AbstractDisplay, choose_display
from lockstep.client.following import AWAY_S, JOB_S, POLL_S, ask, followed
from lockstep.client.frames import metric_frame, scalar_frame, trial_frame
from lockstep.client.job_cost import JobCost
from lockstep.client.job_endings import ending_error
from lockstep.client.job_html import job_html
from lockstep.client.job_text import describe_job, job_url
from lockstep.client.trials import Trial, best_of, search_of, study_from
from lockstep.errors import DeadlineError, InvalidInputError, LockstepError, NotFoundError, WrongStateError
from lockstep.jobs.running.function_calls import RESULT_FILE, decode_result
from lockstep.jobs.running.states import TERMINAL, JobState

if TYPE_CHECKING:
    import optuna
    import pandas

    from lockstep.jobs.input.hyperparameters import HyperparameterSpec

FRESH_S: Final = 1.0
"""How long the service's last answer about a job counts as its current state, in seconds."""
QUICK_S: Final = 10.0
"""How long `Job.wait` requests the job's state at short intervals, in seconds."""
MAX_POINTS: Final = 2000
"""The largest number of points of a series that the service returns."""
RESULT: Final = f"model/{RESULT_FILE}"
"""The path of the artifact with the value that a submitted function returned."""


@final
class Job:
    """A job of the service. Thread-safe.

    For example::

        job = lockstep.submit("train.py", args=["--epochs", 3])
        job.wait()
        job.fetch("model/model.keras")

    Args:
        name: the job's name.
        project: its project; by default the client's, or else ``LOCKSTEP_PROJECT``, or else ``local``.
        client: the client of the service; by default, one for the service that the environment names: see
            `lockstep.Client.from_env`. It is closed with this object.

    Raises:
        ConfigError: a variable of the environment is not valid, or one is missing.
        UnavailableError: no service is named, and none runs on the home.
        InvalidInputError: the client has another project.
    """

    def __init__(self, name: str, *, project: str | None = None, client: Client | None = None) -> None:
        if client is None:
            client = Client.from_env(project=project or os.environ.get(PROJECT_VARIABLE) or DEFAULT_PROJECT)
            weakref.finalize(self, client.close)
        elif project not in (None, client.project):
            raise InvalidInputError("the client has another project", received=project, allowed=client.project)
        self._name = name
        self._client = client
        self._lock = threading.Lock()
        self._found: dict[str, Any] | None = None
        self._read_time_s = 0.0

    @property
    def name(self) -> str:
        """The job's name."""
        return self._name

    @property
    def project(self) -> str:
        """The job's project."""
        return self._client.project

    @property
    def url(self) -> str:
        """The URL of the job's page in the console."""
        return job_url(self._client.url, project=self.project, name=self._name)

    @property
    def resource(self) -> dict[str, Any]:
        """The job in the contract's JSON form, as the service last returned it.

        Raises:
            NotFoundError: there is no such job.
            UnavailableError: the service does not respond.
        """
        with self._lock:
            found = self._found
        return self.refresh().resource if found is None else found

    @property
    def state(self) -> JobState:
        """The job's state. It is requested from the service, at most once a second and until the job is over.

        Raises:
            NotFoundError: there is no such job.
            UnavailableError: the service does not respond.
        """
        with self._lock:
            found, age_s = self._found, time.monotonic() - self._read_time_s
        if found is None or (age_s > FRESH_S and found["state"] not in TERMINAL):
            self.refresh()
        return JobState(self.resource["state"])

    @property
    def is_over(self) -> bool:
        """Whether the job has ended: it is SUCCEEDED, FAILED or CANCELLED."""
        return self.state in TERMINAL

    @property
    def cost(self) -> JobCost:
        """What the job has cost so far, at list prices, or what it cost in the end.

        Raises:
            NotFoundError: there is no such job.
            UnavailableError: the service does not respond.
        """
        _ = self.state
        return JobCost.of(self.resource)

    def refresh(self) -> Self:
        """Requests the job from the service, and returns this object.

        Raises:
            NotFoundError: there is no such job.
            UnavailableError: the service does not respond.
        """
        return self._refresh(away_s=0.0)

    def wait(self, timeout_s: float | None = None, *, show: bool = True) -> Self:
        """Waits until the job has succeeded, and returns this object.

        Ctrl-C, or "interrupt" in a notebook, ends the waiting, but not the job. The service may restart meanwhile.

        Args:
            timeout_s: how long to wait, in seconds; None until the job is over.
            show: whether to show the job's progress: as an output that is updated in a notebook, as a line that is
                updated on a terminal, and otherwise as lines of standard error.

        Raises:
            JobFailedError: the job failed. Its ``log_lines`` are the last lines of the job's log.
            JobCancelledError: the job was cancelled.
            DeadlineError: the job is not over after this time; it continues.
            NotFoundError: there is no such job.
            UnavailableError: the service did not respond for a minute.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        shown = choose_display() if show else None
        try:
            self._wait_until_over(deadline, shown=shown)
        finally:
            if shown is not None:
                shown.close()
        error = ending_error(self._client, self.resource)
        if error is not None:
            raise error
        return self

    def logs(self, filter: str = "", *, follow: bool = False) -> Iterator[dict[str, Any]]:
        """Yields the entries of the job's log, in the form of Cloud Logging's ``LogEntry``.

        Args:
            filter: selects entries, in Cloud Logging's query language, such as ``severity>=WARNING``.
            follow: whether to go on until the job is over and its log is complete.

        Yields:
            Entries. The text is ``textPayload``, the time ``timestamp``, and the replica
            ``entry["resource"]["labels"]["task_name"]``.

        Raises:
            InvalidInputError: the filter is not valid.
            NotFoundError: there is no such job.
            UnavailableError: the service does not respond; with `follow`, for a minute.
        """
        if not follow:
            yield from self._client.log_entries(self._name, filter_text=filter)
            return
        for page, found in followed(self._client, self._name, filter_text=filter):
            self._note(found)
            yield from page["entries"]

    def metrics(
        self,
        *,
        names: Sequence[str] = (),
        replica: str | None = None,
        attempt: int | None = None,
        max_points: int = MAX_POINTS,
    ) -> pandas.DataFrame:
        """Returns what was measured of the job's replicas: processors, memory, GPUs, steps, and reported metrics.

        Args:
            names: the names of the metrics; all if empty. See docs/watching.md.
            replica: the replica's name; None for all.
            attempt: the job's start, from 0; None for the latest.
            max_points: the maximum number of points of a series, 1 to 2000.

        Returns:
            A table with one row for each measurement, and the columns ``time`` (UTC), ``replica``, ``attempt``,
            ``metric``, ``unit`` and ``value``.

        Raises:
            ConfigError: pandas is not installed.
            InvalidInputError: there is no such metric, replica or attempt.
            NotFoundError: there is no such job.
            UnavailableError: the service does not respond.
        """
        asked = {"name": list(names), "replica": replica, "attempt": attempt, "maxPoints": max_points}
        query = {key: value for key, value in asked.items() if value is not None}
        return metric_frame(self._client.metric_pages(self._name, query=query))

    def scalars(self, tag: str = "", *, max_points: int = 500) -> pandas.DataFrame:
        """Returns the curves that the job wrote for TensorBoard, such as ``epoch_loss``.

        Args:
            tag: the tag of the curves; empty for all.
            max_points: the maximum number of points of a curve; longer ones are thinned evenly.

        Returns:
            A table with one row for each point, and the columns ``run``, ``tag``, ``step``, ``time`` (UTC) and
            ``value``.

        Raises:
            ConfigError: pandas is not installed.
            NotFoundError: there is no such job.
            UnavailableError: the service does not respond.
        """
        return scalar_frame(self._client.scalars(self._name, tag=tag, max_points=max_points))

    def trials(self) -> pandas.DataFrame:
        """Returns the trials of a search, in the order of their numbers.

        Returns:
            A table with one row for each trial, and the columns ``number``, ``job``, ``state``, ``value``, ``step``,
            ``params_NAME`` for each parameter, ``stopped_early``, ``start_time``, ``end_time`` (UTC) and ``cost_usd``.

        Raises:
            ConfigError: pandas is not installed.
            NotFoundError: there is no such job.
            WrongStateError: the job is no search.
            UnavailableError: the service does not respond.
        """
        spec, found = self._search()
        return trial_frame(found, parameters=[param.parameter_name for param in spec.params])

    @property
    def best_trial(self) -> Trial | None:
        """The best of a search's trials that have ended; None if none has a value of the metric yet.

        Raises:
            NotFoundError: there is no such job.
            WrongStateError: the job is no search.
            UnavailableError: the service does not respond.
        """
        return best_of(*self._search())

    def study(self) -> optuna.Study:
        """Returns the trials of a search as a study of Optuna, whose plots show them.

        For example::

            optuna.visualization.plot_optimization_history(job.study())

        The study is a copy in memory. The user attribute ``job`` of its trials names their jobs.

        Raises:
            NotFoundError: there is no such job.
            WrongStateError: the job is no search.
            UnavailableError: the service does not respond.
        """
        return study_from(*self._search(), name=self._name)

    def artifacts(self) -> list[dict[str, Any]]:
        """Returns the files that the job left in the folders of its outputs.

        Each has ``path``, such as ``model/model.keras``, ``output`` (the first part of the path), ``sizeBytes`` and
        ``updateTime``.

        Raises:
            NotFoundError: there is no such job.
            UnavailableError: the service does not respond.
        """
        return self._client.artifacts(self._name)

    def fetch(self, path: str, *, to: str | os.PathLike[str] = ".") -> Path:
        """Downloads a file that the job left, or a folder of such files.

        Args:
            path: the path of an artifact, such as ``model/model.keras``, or of a folder, such as ``model``.
            to: where to put it: a folder that exists, in which it keeps its name; or a new name.

        Returns:
            The local file or folder.

        Raises:
            NotFoundError: the job left no such file or folder.
            StorageWriteError: the local file cannot be written.
            UnavailableError: the service does not respond.
        """
        return job_outputs.fetch(self._client, self._name, path, to=Path(to))

    def profile(
        self,
        num_steps: int = 20,
        *,
        replica: str | None = None,
        to: str | os.PathLike[str] = ".",
        timeout_s: float = 600.0,
    ) -> Path:
        """Records a JAX profile of the job's next training steps, and downloads it.

        Training goes on meanwhile. The files also stay in the job's TensorBoard folder.

        Args:
            num_steps: the number of steps, 1 to 1000.
            replica: the replica's name; None for the first one that has reported a step.
            to: the folder to put the files into. TensorBoard opens it (``tensorboard --logdir``).
            timeout_s: how long to wait for the profile, in seconds.

        Returns:
            The local folder with the files: one for TensorBoard (``.xplane.pb``), and one for Perfetto
            (``.trace.json.gz``).

        Raises:
            WrongStateError: the job is not running, has not reported a step, or ended before the profile was complete.
            ConflictError: another profile is being recorded.
            BackendError: the program could not record a profile. The message says why.
            DeadlineError: there is no profile after this time.
            NotFoundError: there is no such job or replica.
            UnavailableError: the service does not respond.
        """
        files, _ = profiles.fetch_profile(
            self._client, self._name, num_steps=num_steps, replica=replica, to=Path(to), timeout_s=timeout_s
        )
        return files[0].parent

    @property
    def result(self) -> Any:
        """The value that the job's function returned, for a job of `lockstep.submit` with a function.

        It is read from JSON: what was a list, number, text, boolean, None, or dictionary with texts as keys.

        Raises:
            WrongStateError: the job is not over, or has stored no value. The message says why.
            JobFailedError: the job failed.
            JobCancelledError: the job was cancelled.
            UnavailableError: the service does not respond.
        """
        if not self.is_over:
            raise WrongStateError(
                f"job {self._name} has no result yet", received=str(self.state), action="call wait() first"
            )
        error = ending_error(self._client, self.resource)
        if error is not None:
            raise error
        with tempfile.TemporaryDirectory(prefix="lockstep-result-") as folder:
            place = Path(folder, "result.json")
            try:
                self._client.fetch_artifact(self._name, RESULT, to=place)
            except NotFoundError:
                raise WrongStateError(
                    f"job {self._name} has stored no result", allowed="jobs of lockstep.submit with a function"
                ) from None
            value, problem = decode_result(place.read_bytes())
        if problem is not None:
            raise WrongStateError(f"job {self._name} has stored no result: {problem}")
        return value

    def cancel(self) -> Self:
        """Requests the job's end, and returns this object. The job is over when `wait` returns or raises.

        Raises:
            NotFoundError: there is no such job.
            WrongStateError: the job is over already.
            UnavailableError: the service does not respond.
        """
        self._client.cancel_job(self._name)
        return self.refresh()

    def __repr__(self) -> str:
        with self._lock:
            found = self._found
        return f"Job({self._name})" if found is None else f"Job({describe_job(found)})"

    def _repr_html_(self) -> str:
        problem = ""
        try:
            _ = self.state
        except LockstepError as error:  # a notebook shows what is known, and why there is nothing newer
            problem = str(error)
        with self._lock:
            return job_html(self._name, job=self._found, url=self.url, problem=problem)

    def _search(self) -> tuple[HyperparameterSpec, list[Trial]]:
        spec = search_of(self.resource)
        found = [Trial.of(document, spec=spec) for document in self._client.trials(self._name)]
        return spec, sorted(found, key=lambda trial: trial.number)

    def _wait_until_over(self, deadline: float | None, *, shown: AbstractDisplay | None) -> None:
        began_s = time.monotonic()
        while True:
            left_s = AWAY_S if deadline is None else deadline - time.monotonic()
            found = self._refresh(away_s=max(0.0, min(AWAY_S, left_s))).resource
            if shown is not None:
                shown.show(self, line=describe_job(found), state=found["state"])
            if found["state"] in TERMINAL:
                return
            if left_s <= 0:
                raise DeadlineError(
                    f"job {self._name} is not over", received=found["state"], action="the job continues; wait again"
                )
            pause_s = POLL_S if time.monotonic() - began_s < QUICK_S else JOB_S
            time.sleep(min(pause_s, left_s))

    def _refresh(self, *, away_s: float) -> Self:
        self._note(ask(self._client, lambda client: client.job(self._name), away_s=away_s))
        return self

    def _note(self, found: Mapping[str, Any]) -> None:
        with self._lock:
            self._found, self._read_time_s = dict(found), time.monotonic()
