"""The rivals: what each is installed from, and how it is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

COMMON: Final = ("torch==2.15.0", "numpy==2.4.6", "pillow==13.0.0")
PORT: Final = "{port}"


@final
@dataclass(frozen=True, kw_only=True)
class Rival:
    """A server that Lockstep is compared with.

    Attributes:
        title: its name in the tables.
        packages: what is installed besides `COMMON`.
        shown: the packages whose versions the table shows.
        program: the program in the environment that is started.
        arguments: its arguments; `PORT` stands for the port.
        note: the settings that are not defaults, for the table.
    """

    title: str
    packages: tuple[str, ...]
    shown: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]
    note: str

    def command(self, folder: Path, *, port: int) -> list[str]:
        """Returns the command that starts the server of the environment in a folder."""
        return [str(folder / "bin" / self.program), *(one.replace(PORT, str(port)) for one in self.arguments)]


RIVALS: Final = {
    "fastapi": Rival(
        title="FastAPI",
        packages=("fastapi[standard]==0.165.0", "uvicorn==0.54.0"),
        shown=("fastapi", "uvicorn", "torch"),
        program="uvicorn",
        arguments=("serving.rivals.fast_api:app", "--host=127.0.0.1", f"--port={PORT}", "--no-access-log"),
        note="no batches; no access log",
    ),
    "ray-serve": Rival(
        title="Ray Serve",
        packages=("ray[serve]==2.60.0",),
        shown=("ray", "torch"),
        program="python",
        arguments=("-m", "serving.rivals.ray_serve", PORT),
        note="`@serve.batch` of 64 within 2 ms; `max_ongoing_requests` 256; no access log, no dashboard",
    ),
    "litserve": Rival(
        title="LitServe",
        packages=("litserve==0.2.19",),
        shown=("litserve", "torch"),
        program="python",
        arguments=("-m", "serving.rivals.lit_serve", PORT),
        note="batches of 64 within 2 ms; no access log",
    ),
    "bentoml": Rival(
        title="BentoML",
        packages=("bentoml==1.4.40",),
        shown=("bentoml", "torch"),
        program="bentoml",
        arguments=("serve", "serving.rivals.bento_ml:Predictor", "--host=127.0.0.1", f"--port={PORT}"),
        note="adaptive batches of up to 64; no access log",
    ),
}


def variables_of(folder: Path) -> dict[str, str]:
    """Returns what a rival's environment has besides this process's own: a home, where it keeps files of its own."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {
        "HOME": str(home),
        "BENTOML_DO_NOT_TRACK": "true",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Where a proxy takes longer than the usual 5 s, as on a busy machine, Serve kills it and gives up.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }
