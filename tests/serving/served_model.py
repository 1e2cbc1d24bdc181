"""A prediction server under a real runner, as the service has it started on a node."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from lockstep.clusters.runner_process import RunnerProcess
from lockstep.jobs.running.order_parts import FileOrder, ServerOrder
from lockstep.jobs.running.orders import ReplicaOrder, ReplicaStatus
from lockstep.processes.ports import reserve_address
from lockstep.serving import SERVER_TOKEN

WAIT_S = 120.0
TOKEN = "the-token-of-this-server"


class ServedModel:
    """Starts a server, and ends it with `close`.

    Args:
        folder: an empty folder.
        model: the path of the model's file.
        packages: the URLs of packages with its classes.
        flags: further arguments of the server.
        silent_within_s: how long it may not respond.
        user: the user that it runs as.
        programs: the folder of the version's compiled programs; None for none.
        routine: the class of a custom prediction routine, which gets the model as its only file.
    """

    def __init__(
        self,
        folder: Path,
        model: str,
        *,
        packages: Sequence[str] = (),
        flags: Sequence[str] = (),
        silent_within_s: float = 10.0,
        user: int | None = None,
        programs: Path | None = None,
        routine: str | None = None,
    ) -> None:
        self.spool = folder / "spool"
        self.log = folder / "log"
        (self.spool / "work").mkdir(parents=True)
        self._address = reserve_address("127.0.0.1")
        self.url = f"http://{self._address.address}"
        name = f"model{Path(model).suffix}" if routine is None else f"deployed-model/{Path(model).name}"
        file = FileOrder(url=model, name=name, sha256=hashlib.sha256(Path(model).read_bytes()).hexdigest())
        has_code = ("--has-code",) if packages else ()
        arguments = (f"--model={name}", f"--display-url={model}", *has_code, *flags)
        if routine is not None:
            arguments = ("--model=deployed-model", f"--prediction-class={routine}")
        self.order = ReplicaOrder(
            name="master-replica-0",
            role="master",
            index=0,
            job="m/v",
            command=("-m", "lockstep.serving", *arguments),
            cluster={"master": (self._address.address,)},
            secrets={SERVER_TOKEN: TOKEN},
            packages=tuple(packages),
            spool=str(self.spool),
            log_url=str(self.log),
            user=user,
            files=(file,),
            server=ServerOrder(
                ready_within_s=WAIT_S,
                silent_within_s=silent_within_s,
                programs_folder="" if programs is None else str(programs),
            ),
        )
        self.statuses: list[ReplicaStatus] = []
        self._runner = RunnerProcess()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.statuses.append(self._runner.run(self.order, report=self.statuses.append))

    @property
    def status(self) -> ReplicaStatus:
        return self.statuses[-1]

    @property
    def text(self) -> str:
        return "".join(path.read_text() for path in self.log.rglob("*.jsonl"))

    def await_start(self) -> ReplicaStatus:
        """Waits until the server is ready or has ended."""
        deadline = time.monotonic() + WAIT_S
        while not self.statuses or (self.status.ready_time_s is None and self.status.end is None):
            assert time.monotonic() < deadline, self.statuses
            time.sleep(0.02)
        return self.status

    def await_end(self) -> ReplicaStatus:
        self._thread.join(WAIT_S)
        assert self.status.end is not None, self.status
        return self.status

    def post(self, instances: object, *, token: str = TOKEN, **others: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        body = {"instances": instances, **others}
        return httpx.post(f"{self.url}/predict", json=body, headers=headers, timeout=WAIT_S)

    def predict(self, instances: object) -> object:
        status = self.await_start()
        assert status.ready_time_s is not None, status.end
        return self.post(instances).json()["predictions"]

    def close(self) -> ReplicaStatus:
        self._runner.stop()
        status = self.await_end()
        self._address.close()
        return status
