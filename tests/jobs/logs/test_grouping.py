"""Which lines become one entry. The tracebacks are those of Python itself where a program can make them here."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs.logs import EntryGrouper, Severity
from lockstep.jobs.logs.grouping import MESSAGE_LINES, PAUSE_S

TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "    f()", "ValueError: bad"]


def _entries(lines: list[str], *, stderr: bool = True) -> list[tuple[str, str]]:
    grouper = EntryGrouper(whole_messages=stderr)
    entries: list[tuple[str, str]] = []
    for line in lines:
        line_class = grouper.classify(line, now_s=0.0)
        if line_class.continues:
            severity, text = entries[-1]
            assert severity == line_class.severity.name
            entries[-1] = severity, f"{text}\n{line}"
        else:
            entries.append((line_class.severity.name, line))
    return entries


def _printed(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return done.stderr.splitlines()


def _prefixed(prefix: str) -> list[str]:
    return [prefix + line for line in TRACEBACK]


@pytest.mark.parametrize(
    "program",
    [
        "def f(n): f(n + 1)\nf(0)",
        "try: 1 / 0\nexcept Exception as error: raise ValueError('first\\n\\n  second\\nthird') from error",
        "try: 1 / 0\nexcept Exception: [][1]",
        "try: 1 / 0\nexcept Exception as error: raise ExceptionGroup('g', [error, ExceptionGroup('h', [KeyError(1)])])",
        "error = ValueError('INTERNAL ERROR: x'); error.add_note('a note'); raise error",
        "class E(Exception): pass\nraise E",
        "import threading\nthread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()",
        "exec('x = = 1')",
        "x = = 1",
    ],
)
def test_a_traceback_of_python_is_one_entry(program: str) -> None:
    lines = _printed(program)
    assert len(lines) > 2
    assert _entries(lines) == [("ERROR", "\n".join(lines))]


@pytest.mark.parametrize("prefix", ["[rank0]: ", "(worker pid=12) ", "[rank1]:E1122 07:15:00.123 12 f.py:1] "])
def test_a_traceback_with_a_prefix_is_one_entry(prefix: str) -> None:
    lines = _prefixed(prefix)
    assert _entries(["before", *lines, "after"]) == [
        ("DEFAULT", "before"),
        ("ERROR", "\n".join(lines)),
        ("DEFAULT", "after"),
    ]


def test_a_traceback_on_standard_output_ends_with_its_exception() -> None:
    whole = "\n".join(TRACEBACK)
    assert _entries([*TRACEBACK, "step 2"], stderr=False) == [("ERROR", whole), ("DEFAULT", "step 2")]


@pytest.mark.parametrize("after", ["INFO:root:going on", "INFO: going on"])
def test_a_log_line_ends_a_traceback(after: str) -> None:
    whole = "\n".join(TRACEBACK)
    assert _entries([*TRACEBACK, after]) == [("ERROR", whole), ("INFO", after)]
    assert _entries([*TRACEBACK[:3], after]) == [("ERROR", "\n".join(TRACEBACK[:3])), ("INFO", after)]


def test_two_tracebacks_are_two_entries() -> None:
    whole = "\n".join(TRACEBACK)
    assert _entries([*TRACEBACK, *TRACEBACK]) == [("ERROR", whole), ("ERROR", whole)]


def test_a_message_has_a_bound() -> None:
    entries = _entries([*TRACEBACK, *["more"] * (MESSAGE_LINES + 2)])
    assert [severity for severity, _ in entries] == ["ERROR", "DEFAULT", "DEFAULT"]
    assert entries[0][1].count("more") == MESSAGE_LINES


def test_after_a_pause_a_line_begins_anew() -> None:
    grouper = EntryGrouper(whole_messages=True)
    for line in TRACEBACK:
        grouper.classify(line, now_s=0.0)
    late = grouper.classify("later", now_s=PAUSE_S + 0.1)
    assert (late.severity, late.continues, late.open) == (Severity.DEFAULT, False, False)


def test_what_is_left_of_a_traceback_that_was_ended_is_an_error_too() -> None:
    grouper = EntryGrouper(whole_messages=True)
    line_classes = [grouper.classify(line, now_s=0.0) for line in TRACEBACK]
    assert {line_class.severity for line_class in line_classes} == {Severity.ERROR}
    assert all(line_class.open for line_class in line_classes)


def test_a_warning_has_its_source_line() -> None:
    lines = _printed("import warnings\nwarnings.warn_explicit('w', UserWarning, 'x.py', 3, source=None)")
    head = "x.py:3: UserWarning: w"
    assert lines[0] == head
    assert _entries([head, "  warnings.warn('w')", "  next"]) == [
        ("WARNING", f"{head}\n  warnings.warn('w')"),
        ("DEFAULT", "  next"),
    ]
    assert _entries([head, "next"]) == [("WARNING", head), ("DEFAULT", "next")]


_LINES = st.sampled_from(
    [
        *TRACEBACK,
        *_prefixed("[rank0]: "),
        "",
        "  + Exception Group Traceback (most recent call last):",
        "  | ExceptionGroup: g (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "During handling of the above exception, another exception occurred:",
        "Exception in thread Thread-1:",
        "x.py:3: UserWarning: w",
        "ERROR:root:x",
        "plain",
    ]
)


@given(st.lists(_LINES | st.text(max_size=5), max_size=15), st.booleans())
def test_no_line_is_lost_whatever_comes(lines: list[str], stderr: bool) -> None:
    entries = _entries(lines, stderr=stderr)  # which checks too that what continues has its entry's severity
    assert "\n".join(text for _, text in entries) == "\n".join(lines)


def test_the_stacks_of_a_program_that_was_ended_are_one_entry() -> None:
    program = """if True:
        import faulthandler, os, sys, threading
        def hang(): threading.Event().wait()
        thread = threading.Thread(target=hang, daemon=True); thread.start()
        faulthandler.enable()
        print("before", file=sys.stderr, flush=True)
        os.abort()"""
    lines = _printed(program)
    before, (severity, text) = _entries([*lines, "after it"])[:2]
    assert before == ("DEFAULT", "before")
    assert severity == "CRITICAL"
    assert text.splitlines()[0] == "Fatal Python error: Aborted"
    assert " in hang" in text
    assert "Current thread 0x" in text
    assert _entries([*lines, "after it"])[2:] == [("DEFAULT", "after it")]
