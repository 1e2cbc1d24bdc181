"""Trying a model: a form for instances or an image, the predictions, and how to send the same request elsewhere."""

from __future__ import annotations

import base64
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import htpy as h
from starlette.responses import HTMLResponse, Response

from lockstep.errors import BodyTooLargeError, InvalidInputError
from lockstep.service.console.asking import HTTP_OK, Asking, Predicted, ask_for_predictions, read_signature
from lockstep.service.console.charts import number
from lockstep.service.console.forms import SentFile
from lockstep.service.console.layout import csrf_field, model_path, page, table
from lockstep.service.console.names import check_name
from lockstep.service.console.pages.model_versions import list_versions, ready_names
from lockstep.service.console.signing_in import Session

MAX_EXAMPLE_VALUES: Final = 4096
"""The most values of an example. Larger inputs are better sent by a program."""
MAX_IMAGE_BYTES: Final = 8 * 2**20
"""The largest image that is sent to a model, in bytes."""
MAX_SHOWN_BYTES: Final = 2**20
"""The largest response that is shown in full, in bytes."""
MAX_SHOWN_TEXT: Final = 20_000
MAX_ROWS: Final = 50
MAX_COLUMNS: Final = 24
MAX_INLINE: Final = 1500
"""The longest request that the lines to copy contain, in characters. A longer one is a file of its own."""
KEY: Final = "LOCKSTEP_API_KEY"


@final
@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a reader has sent.

    Attributes:
        version: the version; None for one that has traffic.
        text: the JSON of the request as it was entered; "" if an image was sent.
        image: the image; None if JSON was sent.
    """

    version: str | None
    text: str
    image: SentFile | None

    @property
    def body(self) -> bytes:
        """The body of the request for predictions. What is not JSON is refused by the server, which says why."""
        if self.image is not None:
            encoded = base64.b64encode(self.image.data)
            return b'{"instances": [{"b64": "' + encoded + b'"}]}'
        return self.document.encode()

    @property
    def document(self) -> str:
        """The JSON of the request. A list alone is one of instances."""
        text = self.text.strip()
        return f'{{"instances": {text}}}' if text.startswith("[") else text


def try_section(
    session: Session,
    *,
    project: str,
    model: str,
    versions: Sequence[str],
    loads_example: bool = False,
    example: str = "",
    hint: str = "",
    sent: Sent | None = None,
    result: h.Node = None,
) -> h.Element:
    """Returns the form with which a reader tries a model.

    Args:
        session: the session of the reader.
        project: the project.
        model: the model.
        versions: the names of the versions that answer requests.
        loads_example: whether the browser asks for an example when it shows the form.
        example: an example of a request; "" if there is none.
        hint: what the model takes, in words.
        sent: what was sent; None if nothing was yet.
        result: the predictions, if some were requested.
    """
    path = model_path(project, model)
    loads = {"hx-get": f"{path}/try", "hx-trigger": "load"} if loads_example and versions else {}
    chosen = None if sent is None else sent.version
    if not versions:
        return h.section("#try")[h.h2["Try it"], h.p(".muted")["No version answers requests yet."]]
    return h.section("#try", loads)[
        h.h2["Try it"],
        h.form(
            method="post",
            action=f"{path}/predict",
            enctype="multipart/form-data",
            hx_post=f"{path}/predict",
            hx_target="#try-result",
            hx_swap="innerHTML",
        )[
            csrf_field(session),
            h.label(".block")[
                "Request, as JSON",
                h.textarea("#try-instances", name="instances", rows=6, spellcheck="false", autocomplete="off")[
                    sent.text if sent is not None else example
                ],
            ],
            h.p(".muted")[hint or ["A list of instances, or a whole request: ", h.code['{"instances": [...]}']]],
            h.div(".bar")[
                h.label(".drop", data_drop="on")[
                    "or an image (JPEG or PNG), which is sent instead",
                    h.input(type="file", name="image", accept="image/jpeg,image/png"),
                ],
                h.label[
                    "Version",
                    h.select(name="version")[
                        h.option(value="")["by traffic"],
                        (h.option(value=name, selected=name == chosen)[name] for name in versions),
                    ],
                ],
                h.button(".primary", type="submit")["Predict"],
                h.a(".button", href=f"{path}/try")["Fill in an example"] if not example else None,
            ],
        ],
        h.div("#try-result", aria_live="polite")[result],
    ]


async def show(asking: Asking) -> Callable[[], h.Node | Response]:
    """Returns the form with an example that is made from what the model takes."""
    version = asking.request.query_params.get("version") or None
    signature = await read_signature(asking, version=version)
    example, hint = describe_inputs(signature)

    def render() -> h.Node:
        return _place(asking, example=example, hint=hint)

    return render


async def predict(asking: Asking) -> Callable[[], h.Node | Response]:
    """Requests predictions, and returns them with the lines that request the same elsewhere."""
    sent = read_sent(asking.form.fields, asking.form.files)
    predicted = await ask_for_predictions(asking, version=sent.version, body=sent.body)

    def render() -> Response:
        request = asking.request
        address = f"{request.url.scheme}://{request.url.netloc}"
        shown = [_result(predicted), _lines(sent, url=f"{address}{_predict_path(asking, sent.version)}")]
        if "hx-request" in request.headers:
            return HTMLResponse(str(h.fragment[shown]))
        return HTMLResponse(str(_place(asking, sent=sent, result=shown)), predicted.status)

    return render


def read_sent(fields: Mapping[str, str], files: Mapping[str, SentFile]) -> Sent:
    """Returns what a reader has sent.

    Args:
        fields: the fields of the form.
        files: its files.

    Raises:
        BodyTooLargeError: If the image is larger than `MAX_IMAGE_BYTES`.
        InvalidInputError: If neither instances nor an image were sent, or the version cannot be one.
    """
    version = fields.get("version", "").strip()
    image, text = files.get("image"), fields.get("instances", "")
    if image is None and not text.strip():
        raise InvalidInputError(
            "there is nothing to predict",
            action=f"enter instances, or choose an image of {MAX_IMAGE_BYTES} bytes at most",
        )
    if image is not None and len(image.data) > MAX_IMAGE_BYTES:
        raise BodyTooLargeError("the image is too large", allowed=f"{MAX_IMAGE_BYTES} bytes at most")
    return Sent(version=check_name(version, what="version") if version else None, text=text, image=image)


def _predict_path(asking: Asking, version: str | None) -> str:
    own = "" if version is None else f"/versions/{version}"
    return f"/v1/projects/{asking.project}/models/{asking.model}{own}:predict"


def _place(
    asking: Asking, *, example: str = "", hint: str = "", sent: Sent | None = None, result: h.Node = None
) -> h.Node:
    """Returns the form for a page that has it already, or on a page of its own. Reads the names of the versions."""
    project, model = asking.project, asking.model
    versions = ready_names(list_versions(asking.session, asking.context, project=project, model=model))
    shown = try_section(
        asking.session,
        project=project,
        model=model,
        versions=versions,
        example=example,
        hint=hint,
        sent=sent,
        result=result,
    )
    if "hx-request" in asking.request.headers:
        return shown
    return page(
        h.p[h.a(href=model_path(asking.project, asking.model))[f"Model {asking.model}"]],
        shown,
        title=f"Try model {asking.model}",
        session=asking.session,
        path="/models",
        project=asking.project,
    )


def describe_inputs(signature: Mapping[str, Any] | None) -> tuple[str, str]:
    """Returns an example of a request, and what a model takes in words; both "" if that is not known.

    Args:
        signature: the metadata of the Open Inference Protocol, which a program may have made up; None if not known.
    """
    inputs = [] if signature is None else signature.get("inputs")
    specs = [_spec(given) for given in inputs] if isinstance(inputs, list) else []
    known = [spec for spec in specs if spec is not None]
    if not known or len(known) != len(specs):
        return "", ""
    hint = "The model takes " + ", ".join(
        f"{name}: {kind} of shape {' x '.join('any' if size < 0 else str(size) for size in shape) or 'one value'}"
        for name, kind, shape in known
    )
    values = {name: _zeros(kind, shape) for name, kind, shape in known}
    if any(value is None for value in values.values()):
        return "", f"{hint}. That is too large to be typed: send an image, or use a program."
    instance = values if len(known) > 1 else next(iter(values.values()))
    return json.dumps({"instances": [instance]}), f"{hint}."


def _spec(given: object) -> tuple[str, str, list[int]] | None:
    """Returns the name, the type and the shape of an input, without the dimension of instances."""
    if not isinstance(given, dict):
        return None
    name, kind, shape = given.get("name"), given.get("datatype"), given.get("shape")
    if not isinstance(name, str) or not isinstance(kind, str) or not isinstance(shape, list):
        return None
    if not shape or len(shape) > 8 or not all(type(size) is int for size in shape):
        return None
    return name[:100], kind[:20], shape[1:]


def _zeros(kind: str, shape: Sequence[int]) -> Any:
    """Returns nested lists of zeros; None if they would be too large. Dimensions of any size have one element."""
    sizes = [1 if size < 0 else size for size in shape]
    if max(sizes, default=0) > MAX_EXAMPLE_VALUES or math.prod(sizes) > MAX_EXAMPLE_VALUES:
        return None
    made: Any = {"BOOL": False, "BYTES": "text"}.get(kind, 0.0 if kind.startswith(("FP", "BF")) else 0)
    for size in reversed(sizes):
        made = [made] * size
    return made


def _result(predicted: Predicted) -> h.Node:
    took = f"{number(predicted.latency_s * 1000)} ms"
    if predicted.error is not None:
        return h.p(".error", role="alert")[f"{predicted.error} (status {predicted.status}, after {took})"]
    content = predicted.content
    if len(content) > MAX_SHOWN_BYTES:
        return h.p[f"Version {predicted.version} answered in {took}: {len(content):,} bytes, which are not shown."]
    text = content.decode(errors="replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if predicted.status != HTTP_OK:
        said = document.get("error") if isinstance(document, dict) else None
        message = said.get("message") if isinstance(said, dict) else said
        shown = message if isinstance(message, str) else text[:MAX_SHOWN_TEXT]
        return h.p(".error", role="alert")[f"{shown} (status {predicted.status}, after {took})"]
    predictions = document.get("predictions") if isinstance(document, dict) else None
    return [
        h.p[h.strong[f"Version {predicted.version} answered in {took}"]],
        _table(predictions) if isinstance(predictions, list) else None,
        h.details(open=not _is_tabular(predictions))[h.summary["The answer as JSON"], h.pre(tabindex="0")[_clip(text)]],
    ]


def _clip(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_TEXT else f"{text[:MAX_SHOWN_TEXT]} …"


def _is_tabular(predictions: object) -> bool:
    """Whether predictions are numbers, or short lists of numbers, of one length."""
    if not isinstance(predictions, list) or not predictions:
        return False
    rows = [row if isinstance(row, list) else [row] for row in predictions[:MAX_ROWS]]
    return all(
        len(row) == len(rows[0])
        and 0 < len(row) <= MAX_COLUMNS
        and all(type(value) in (int, float, str, bool) for value in row)
        for row in rows
    )


def _table(predictions: Sequence[Any]) -> h.Node:
    if not _is_tabular(predictions):
        return None
    rows = [row if isinstance(row, list) else [row] for row in predictions[:MAX_ROWS]]
    width = len(rows[0])
    titles = ["Instance", *(str(index) for index in range(width))] if width > 1 else ["Instance", "Prediction"]
    has_largest = width > 1 and all(type(value) in (int, float) for row in rows for value in row)
    shown: list[list[h.Node]] = []
    for index, row in enumerate(rows):
        largest = max(range(width), key=lambda column, row=row: row[column]) if has_largest else -1
        cells: list[h.Node] = [
            h.strong[_value(value)] if column == largest else _value(value) for column, value in enumerate(row)
        ]
        shown.append([str(index), *cells, *([str(largest)] if has_largest else [])])
    more = len(predictions) - len(rows)
    return [
        table(
            [*titles, "Largest"] if has_largest else titles,
            shown,
            label="Predictions",
            numbers=range(width + 1 + has_largest),
        ),
        h.p(".muted")[f"and {more} more"] if more > 0 else None,
    ]


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _lines(sent: Sent, *, url: str) -> h.Element:
    curl, python, note = request_lines(sent, url=url)
    return h.section[
        h.h3["The same request elsewhere"],
        h.p(".muted")[f"Put a key into the variable {KEY} first. {note}"],
        _to_copy("With curl", curl),
        _to_copy("With Python", python),
    ]


def _to_copy(title: str, text: str) -> h.Element:
    return h.div(".copy")[
        h.p(".bar")[h.strong[title], h.button(type="button", data_copy="on", hidden=True)["Copy"]],
        h.pre(tabindex="0")[text],
    ]


def request_lines(sent: Sent, *, url: str) -> tuple[str, str, str]:
    """Returns a line of curl and lines of Python that send a request again, and what to do before.

    Args:
        sent: what was sent.
        url: the URL that it is sent to.
    """
    if sent.image is not None:
        name = sent.image.name or "image"
        shell = f'-d "{{\\"instances\\": [{{\\"b64\\": \\"$(base64 -w0 < {shlex.quote(name)})\\"}}]}}"'
        data = f"base64.b64encode(pathlib.Path({name!r}).read_bytes()).decode()"
        json_text = f'json={{"instances": [{{"b64": {data}}}]}}'
        return _curl(shell, url=url), _python(json_text, url=url, modules=("base64", "pathlib")), ""
    if len(sent.document) > MAX_INLINE:
        content = "content=pathlib.Path('request.json').read_bytes()"
        curl, python = _curl("-d @request.json", url=url), _python(content, url=url, modules=("pathlib",))
        return curl, python, "Save the request as request.json."
    curl = _curl(f"-d {shlex.quote(sent.document)}", url=url)
    return curl, _python(f"content={sent.document!r}", url=url, modules=()), ""


def _curl(data: str, *, url: str) -> str:
    return (
        f'curl --fail-with-body {shlex.quote(url)} \\\n  -H "Authorization: Bearer ${KEY}" \\\n'
        f"  -H 'Content-Type: application/json' \\\n  {data}"
    )


def _python(data: str, *, url: str, modules: Sequence[str]) -> str:
    return (
        f"import {', '.join(sorted(('os', 'httpx', *modules)))}\n\n"
        f"headers = {{'Authorization': 'Bearer ' + os.environ['{KEY}'], 'Content-Type': 'application/json'}}\n"
        f"print(httpx.post({url!r}, headers=headers, timeout=60, {data}).json())"
    )
