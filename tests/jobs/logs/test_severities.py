"""What a line of output says of its severity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs.logs import Severity, severity_named, severity_of


@pytest.mark.parametrize(
    ("severity", "line"),
    [
        # Python's logging
        ("WARNING", "WARNING:root:disk is nearly full"),
        ("WARNING", "WARNING:2026-11-22 10:00:00,123:jax._src.xla_bridge:967] An NVIDIA GPU may be present"),
        ("ERROR", "2026-11-22 10:00:00,123 - train - ERROR - it broke"),
        ("INFO", "train - INFO - started"),
        ("DEBUG", "2026-11-22 10:00:00,123 DEBUG train: x"),
        ("ERROR", "2026-11-22T10:00:00Z [ERROR] x"),
        ("ERROR", "[ERROR] x"),
        ("INFO", "[2026-11-22 10:00:00,123][INFO] x"),
        ("CRITICAL", "CRITICAL: out of memory"),
        ("INFO", "INFO     Started server process"),
        ("WARNING", "[10:00:00] WARNING  slow   train.py:3"),
        ("INFO", "2026-11-22 10:00:00.123 | INFO     | train:main:3 - x"),
        ("INFO", "2026-11-22 10:00:00,123\tINFO worker.py:1 -- Started"),
        ("INFO", "2026-11-22 10:00:00 [info     ] started    step=3"),
        ("ERROR", "\x1b[31mERROR\x1b[0m: in red"),
        ("WARNING", "train: WARN: x"),
        # absl and glog, and XLA's C++ lines
        ("WARNING", "W1122 10:00:00.123456 140 file.py:12] x"),
        ("INFO", "I1122 10:00:00.123456 140 file.py:12] x"),
        ("ERROR", "E0000 00:00:1732269600.123456  140 cuda_dnn.cc:8310] Unable to register cuDNN factory"),
        ("CRITICAL", "F1122 10:00:00.123456 140 file.cc:12] Check failed: x == y"),
        ("WARNING", "2026-11-22 10:00:00.123456: W external/xla/xla/service/gpu/nvptx.cc:765] x"),
        ("WARNING", "[rank0]:[W1122 10:00:00.123 ProcessGroup.cpp:1] x"),
        # JSON lines, logfmt
        ("ERROR", '{"severity": "ERROR", "message": "x", "time": "2026-11-22T10:00:00Z"}'),
        ("WARNING", '{"level": "warn", "msg": "x"}'),
        ("CRITICAL", '{"levelname": "CRITICAL"} '),
        ("NOTICE", '{"severity": 300}'),
        ("ERROR", 'ts=1 level="error" msg=x'),
        # Python warnings and faults
        ("WARNING", "train.py:3: UserWarning: be careful"),
        ("WARNING", "/usr/lib/a b/" + "x" * 200 + ".py:33: pkg.MyWarning: be careful"),
        ("CRITICAL", "Fatal Python error: Segmentation fault"),
        # what says nothing
        ("DEFAULT", ""),
        ("DEFAULT", "Epoch 3/10 step 1200 loss: 0.3212"),
        ("DEFAULT", "Traceback is a word"),
        ("DEFAULT", "an ERROR in the midst of prose"),
        ("DEFAULT", "NO ERRORS FOUND: all well"),
        ("DEFAULT", "WARNINGS are off"),
        ("DEFAULT", "Warning: not a category of Python's"),
        ("DEFAULT", "I1122 is a road"[:5]),
        ("DEFAULT", "[10, 20, 30]"),
        ("DEFAULT", "2026-11-22 10:00:00 the ERRORS"),
        ("DEFAULT", '{"level": 30}'),
        ("DEFAULT", '{"severity": true}'),
        ("DEFAULT", '{"severity": "ERROR"'),
        ("DEFAULT", "{" * 2000 + "}"),
        ("DEFAULT", "x" * 200 + " ERROR: too far behind"),
    ],
)
def test_a_line_says_its_severity(severity: str, line: str) -> None:
    assert severity_of(line).name == severity


@given(st.text())
def test_any_line_has_a_severity(line: str) -> None:
    assert severity_of(line) in Severity


@pytest.mark.parametrize("severity", Severity)
def test_every_severity_is_known_by_its_name_in_any_case(severity: Severity) -> None:
    assert severity_named(severity.name.lower()) is severity
    assert severity_of(f"[{severity.name}] x") is severity


def test_what_is_no_name_has_no_severity() -> None:
    assert severity_named("loud") is None
