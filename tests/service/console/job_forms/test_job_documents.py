"""Documents of jobs that are written in the console: no edit of a field or a row loses anything of the rest."""

from __future__ import annotations

import copy
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import LockstepError
from lockstep.jobs.input.documents import parse_job
from lockstep.jobs.input.predictions import parse_prediction
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.packages import package_digest, unpack_package
from lockstep.service.console.forms import SentFile
from lockstep.service.console.job_forms.choices import choices_of
from lockstep.service.console.job_forms.documents import cloned, new_document, parse_text, text_of
from lockstep.service.console.job_forms.drafts import View, draft_of, next_name, read_draft
from lockstep.service.console.job_forms.fields import Field, Kind, named_field, shown, with_edits, with_value
from lockstep.service.console.job_forms.rows import SecretRow, secret_rows, webhook_rows, with_rows
from lockstep.service.console.job_forms.sections import fields_of
from lockstep.service.console.job_forms.uploads import stage_code, with_code

FULL: dict[str, Any] = {
    "trainingInput": {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-8",
        "masterConfig": {
            "acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_V100"},
            "diskConfig": {"bootDiskSizeGb": 50},
        },
        "workerType": "n1-standard-4",
        "workerCount": "2",
        "pythonModule": "train",
        "args": ["--text", "two\nlines", ""],
        "packageUris": ["/b/packages/a.tar.gz"],
        "scheduling": {"maxRunningTime": "7200s"},
        "lockstep": {
            "env": {"master": {"LOG": "a=b", "EMPTY": ""}},
            "secrets": {"TOKEN": "hub-token"},
            "webhooks": [{"url": "https://h.example.com/x", "states": ["FAILED"]}],
            "candidates": [{"masterType": "n1-standard-16"}],
        },
    },
    "labels": {"team": "vision"},
}
MODULE = "trainingInput.pythonModule"
PRIORITY = "trainingInput.scheduling.priority"
SECRETS = "trainingInput.lockstep.secrets"
WEBHOOKS = "trainingInput.lockstep.webhooks"


def form(document: dict[str, Any], **edits: str) -> dict[str, str]:
    """Returns what a browser sends of the form for a document, with some fields edited."""
    fields = {field.name: shown(document, field) for field in fields_of(document)}
    sent = {name: text for name, text in fields.items() if text is not None}
    flags = {field.name for field in fields_of(document) if field.kind is Kind.FLAG}
    sent = {name: text for name, text in sent.items() if text or name not in flags}
    for index, row in enumerate([*(secret_rows(document) or []), SecretRow()]):
        sent |= {f"{SECRETS}.{index}.variable": row.variable, f"{SECRETS}.{index}.secret": row.secret}
    hooks = webhook_rows(document) or []
    for index, hook in enumerate(hooks):
        sent |= {f"{WEBHOOKS}.{index}.url": hook.url, f"{WEBHOOKS}.{index}.secret": hook.secret}
    sent |= {f"{WEBHOOKS}.{len(hooks)}.url": "", f"{WEBHOOKS}.{len(hooks)}.secret": ""}
    return {"jobId": "j", "view": "fields", "document": text_of(document), **sent, **edits}


def test_a_form_that_nobody_edits_changes_nothing_not_even_a_comment() -> None:
    text = f"# mine\n{text_of(FULL)}"
    draft = read_draft({**form(FULL), "document": text})
    assert (draft.document, draft.text, draft.error) == (FULL, text, None)
    assert draft.body == {**FULL, "jobId": "j"}


def test_an_edit_changes_its_value_alone() -> None:
    expected = copy.deepcopy(FULL)
    expected["trainingInput"]["pythonModule"] = "other"
    expected["trainingInput"]["scheduling"]["priority"] = 7
    expected["labels"] = {"team": "vision", "run": "2"}
    sent = form(FULL, **{MODULE: " other ", PRIORITY: "7", "labels": "team=vision\nrun=2\n"})
    assert read_draft(sent).document == expected
    assert parse_text(read_draft(sent).text) == expected


def test_an_emptied_field_leaves_nothing_behind_and_keeps_its_neighbours() -> None:
    accelerator = "trainingInput.masterConfig.acceleratorConfig"
    sent = form(FULL, **{f"{accelerator}.type": "", f"{accelerator}.count": "", "labels": ""})
    document = read_draft(sent).document
    assert document is not None
    assert document["trainingInput"]["masterConfig"] == {"diskConfig": {"bootDiskSizeGb": 50}}
    assert "labels" not in document
    emptied = read_draft(form({"predictionInput": {"dataFormat": "JSON"}}, **{"predictionInput.dataFormat": ""}))
    assert emptied.document == {"predictionInput": {}}, "it stays a batch prediction"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("trainingInput", "args"), ["two\nlines"]),
        (("trainingInput", "args"), [""]),
        (("trainingInput", "args"), [1]),
        (("trainingInput", "args"), "text"),
        (("trainingInput", "pythonModule"), {"a": 1}),
        (("trainingInput", "pythonModule"), "two\nlines"),
        (("trainingInput", "scheduling"), "text"),
        (("trainingInput", "useChiefInTfConfig"), "yes"),
        (("trainingInput", "lockstep", "env", "master"), {"A": "1\n2"}),
        (("trainingInput", "lockstep", "secrets"), ["TOKEN"]),
        (("trainingInput", "lockstep", "webhooks"), "text"),
        (("labels",), {"a=b": "c"}),
    ],
)
def test_what_a_field_cannot_show_exactly_is_edited_in_the_text_alone(path: tuple[str, ...], value: Any) -> None:
    document = with_value(FULL, path, value)
    hostile = {field.name: "edited" for field in fields_of(document) if field.path[: len(path)] == path}
    name = ".".join(path)
    rows = {f"{name}.0.variable": "A", f"{name}.0.secret": "b", f"{name}.0.url": "https://h.example.com"}
    assert read_draft({**form(document), **hostile, **rows}).document == document


TEXTS = st.text(alphabet=st.sampled_from("a=b\n\r\" '#:-*&!{}[]\t\\é\u2028"), max_size=12)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | TEXTS, lambda inner: st.lists(inner, max_size=3))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_document_passes_through_the_form_unchanged(data: st.DataObject) -> None:
    document: dict[str, Any] = copy.deepcopy(FULL)
    for field in data.draw(st.lists(st.sampled_from(fields_of(FULL)), max_size=4)):
        value = data.draw(JSON | st.lists(TEXTS, max_size=3) | st.dictionaries(TEXTS, TEXTS, max_size=3) | TEXTS)
        document = with_value(document, field.path, value)
    assert parse_text(text_of(document)) == document
    draft = read_draft(form(document))
    assert (draft.document, draft.error) == (document, None)
    changed = read_draft(form(document, jobId="j", **{PRIORITY: "5"}))
    if changed.document != document:
        assert changed.document is not None
        assert with_value(changed.document, PRIORITY.split("."), None) == with_value(
            document, PRIORITY.split("."), None
        )


def test_rows_of_secrets_and_webhooks_are_added_changed_and_removed() -> None:
    sent = form(FULL, **{f"{SECRETS}.1.variable": "KEY", f"{SECRETS}.1.secret": "other"})
    document = with_rows(FULL, given=sent)
    assert document["trainingInput"]["lockstep"]["secrets"] == {"TOKEN": "hub-token", "KEY": "other"}
    sent = form(FULL, **{f"{SECRETS}.0.variable": "", f"{SECRETS}.0.secret": ""})
    assert "secrets" not in with_rows(FULL, given=sent)["trainingInput"]["lockstep"]
    for wrong in ({f"{SECRETS}.1.secret": "x"}, {f"{SECRETS}.1.variable": "TOKEN", f"{SECRETS}.1.secret": "x"}):
        with pytest.raises(LockstepError, match=SECRETS):
            with_rows(FULL, given=form(FULL, **wrong))
    first, second = f"{WEBHOOKS}.0", f"{WEBHOOKS}.1"
    sent = form(FULL, **{f"{first}.secret": "sign", f"{second}.url": "https://other.example.com/y"})
    assert with_rows(FULL, given=sent)["trainingInput"]["lockstep"]["webhooks"] == [
        {"url": "https://h.example.com/x", "states": ["FAILED"], "secret": "sign"},
        {"url": "https://other.example.com/y"},
    ]
    sent = form(FULL, **{f"{first}.remove": "on"})
    assert "webhooks" not in with_rows(FULL, given=sent)["trainingInput"]["lockstep"]


def test_an_edit_that_fits_nowhere_is_kept_and_said() -> None:
    for labels in ("no sign", "=x", "a=1\na=2"):
        draft = read_draft(form(FULL, labels=labels, **{MODULE: "other"}))
        assert (draft.document, draft.given["labels"], draft.given[MODULE]) == (FULL, labels, "other")
        assert str(draft.error).startswith("labels; received")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "document is not YAML, line 1"),
        ("- 1", "keys and values"),
        ("a: 1\na: 2", "given twice"),
        ("a: &x [1]\nb: *x", "line 2 has a YAML alias"),
        ("a: &x [*x]", "alias"),
        ("a: 2021-01-01", "what JSON does not have"),
        ("a: .nan", "what JSON does not have"),
        ('a: "\\0"', "what JSON does not have"),
        ('a: "\\ud800"', "document"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML"),
        (f"a: {'x' * 200_000}", "too long"),
        pytest.param("[" * 50_000, "document", id="nested"),
    ],
)
def test_a_text_that_is_no_document_is_refused_and_kept(text: str, said: str) -> None:
    draft = read_draft({"jobId": "j", "view": "text", "document": text})
    assert (draft.document, draft.text, draft.view) == (None, text, View.TEXT)
    assert said in str(draft.error)
    with pytest.raises(LockstepError):
        _ = draft.body


def test_json_and_custom_jobs_are_documents_and_a_name_in_them_has_to_agree() -> None:
    assert parse_text('{"trainingInput": {"args": ["a"]}}') == {"trainingInput": {"args": ["a"]}}
    pool = "{machineSpec: {machineType: n1-standard-4}, pythonPackageSpec: {pythonModule: train}}"
    assert parse_text(f"workerPoolSpecs: [{pool}]")["trainingInput"]["masterType"] == "n1-standard-4"
    named = {"jobId": "other", "view": "text", "document": "jobId: j\ntrainingInput: {}"}
    with pytest.raises(LockstepError, match="jobId; received 'j'"):
        _ = read_draft(named).body


def test_a_clone_asks_again_for_what_is_not_shown_of_a_job() -> None:
    asked = parse_job({**FULL, "jobId": "j"}, source="test").training_input.redacted().to_json()
    assert "h.example.com/***" in str(asked)
    document, hidden = cloned({"trainingInput": asked, "labels": {"a": "b"}})
    assert hidden == ("https://h.example.com",)
    assert document["trainingInput"]["lockstep"]["webhooks"] == [{"states": ["FAILED"]}]
    assert document["trainingInput"]["lockstep"]["secrets"] == {"TOKEN": "hub-token"}
    with pytest.raises(LockstepError, match=r"webhooks\[0\].url is missing") as caught:
        parse_job({**document, "jobId": "j"}, source="request")
    assert named_field(str(caught.value), ("jobId", WEBHOOKS)) == WEBHOOKS


@pytest.mark.parametrize(
    ("job_id", "number", "expected"),
    [
        ("train", 1, "train_2"),
        ("train_2", 1, "train_3"),
        ("train_2", 3, "train_5"),
        ("a" * 128, 1, "a" * 126 + "_2"),
        ("x_", 1, "x__2"),
        ("_2", 1, "_2_2"),
    ],
)
def test_a_clone_has_the_next_name(job_id: str, number: int, expected: str) -> None:
    assert next_name(job_id, number=number) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("request: trainingInput.masterType is missing", "trainingInput.masterType"),
        ("trainingInput.masterConfig.acceleratorConfig.count; received 3", "trainingInput.masterConfig"),
        ("trainingInput.masterTypes is missing", None),
        ("something else; received trainingInput.masterType", None),
        ("jobId: project local has a job 'j' already", "jobId"),
    ],
)
def test_a_problem_stands_beside_the_field_that_it_names(message: str, expected: str | None) -> None:
    names = ("jobId", "trainingInput.masterType", "trainingInput.masterConfig")
    assert named_field(message, names) == expected


def test_choices_have_prices_of_the_region() -> None:
    choices = choices_of(load_catalogue(), region=None)
    assert ("BASIC", "BASIC · 1 replica · $0.19/h") in choices["tiers"]
    assert ("n1-standard-8", "n1-standard-8 · 8 vCPUs · 30 GiB · $0.38/h") in choices["machines"]
    assert ("NVIDIA_TESLA_V100", "NVIDIA_TESLA_V100 · $2.48/h each") in choices["accelerators"]
    europe = dict(choices_of(load_catalogue(), region="europe-west1")["accelerators"])
    assert (europe["NVIDIA_TESLA_V100"], europe["TPU_V5E"]) == (
        "NVIDIA_TESLA_V100 · $2.73/h each",
        "TPU_V5E · no list price",
    )
    assert choices_of(load_catalogue(), region="nowhere") == choices
    assert Field(path=("a", "b"), title="").name == "a.b"


def packed(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


def test_an_uploaded_script_becomes_the_program_and_its_next_version_replaces_it(tmp_path: Path) -> None:
    document = with_value(new_document(is_prediction=False), ("trainingInput", "packageUris"), ["gs://b/x.whl"])
    urls = []
    for content in (b"print(1)", b"print(2)\r\n"):
        staged = stage_code(SentFile(name="C:\\me\\my_train.py", data=content), bucket=str(tmp_path))
        document = with_code(document, staged)
        urls.append(staged.url)
        code = unpack_package(staged.url, data=Path(staged.url).read_bytes(), folder=tmp_path / str(len(urls)))
        assert (code.module_path[0] / "my_train.py").read_bytes() == content
    assert urls[0] != urls[1]
    asked = document["trainingInput"]
    assert (asked["packageUris"], asked["pythonModule"]) == ([urls[1], "gs://b/x.whl"], "my_train")
    archive = packed("top/train.py")
    staged = stage_code(SentFile(name="top.tar.gz", data=archive), bucket=str(tmp_path))
    assert staged.url == f"{tmp_path}/packages/{package_digest(archive)}/top.tar.gz"
    assert with_code(document, staged)["trainingInput"]["packageUris"] == [staged.url, *asked["packageUris"]]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("", b"x"),
        ("train.exe", b"x"),
        ("../../train.py", b""),
        ("two words.py", b"x"),
        ("1st.py", b"x"),
        ("a-b.py", b"x"),
        (".py", b"x"),
        ("<script>.py", b"x"),
        ("a.tar.gz", b"PK\x03\x04"),
        ("a.whl", b"\x1f\x8b"),
        ("x" * 300 + ".py", b"x"),
    ],
)
def test_what_is_no_code_is_not_put_into_the_bucket(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(LockstepError, match=r"code|wheel|package"):
        stage_code(SentFile(name=name, data=data), bucket=str(tmp_path))
    assert list(tmp_path.rglob("*")) == []


def test_the_fields_are_those_of_the_contract() -> None:
    for document in (new_document(is_prediction=False), new_document(is_prediction=True)):
        for field in fields_of(document):
            sample = {Kind.FLAG: True, Kind.LINES: ["x"], Kind.PAIRS: {"a": "b"}, Kind.NUMBER: 1}.get(field.kind, "x")
            body = with_value({"jobId": "j", **document}, field.path, sample)
            parse: Any = parse_prediction if "predictionInput" in document else parse_job
            said = ""
            try:
                parse(body, source="request")
            except LockstepError as error:
                said = str(error)
            assert "unknown key" not in said, field.name
    assert draft_of(new_document(is_prediction=False), job_id="j").view is View.FIELDS
    assert with_edits({}, [], given={}) == {}
