"""Wheels made on the spot, and an index of them on loopback."""

from __future__ import annotations

import functools
import http.server
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, *, requires: Sequence[str] = ()) -> Path:
    """Makes a wheel with one module, whose VERSION is the wheel's."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    contents = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents[f"{about}/RECORD"] = "".join(f"{entry},,\n" for entry in [*contents, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for entry, content in contents.items():
            archive.writestr(entry, content)
    return path


@contextmanager
def index_of(wheels: Path, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves wheels as a simple index (PEP 503); gives its URL, and the paths that are asked for."""
    for path in wheels.glob("*.whl"):
        page = folder / path.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        names = sorted(other.name for other in wheels.glob(f"{page.parent.name}-*.whl"))
        page.write_text("".join(f'<a href="../{name}">{name}</a>' for name in names))
        (folder / path.name).write_bytes(path.read_bytes())
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", asked
        finally:
            server.shutdown()
            thread.join()
