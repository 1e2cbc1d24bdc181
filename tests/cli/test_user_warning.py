"""The warning that programs run as root, in one line of standard error."""

from __future__ import annotations

import pytest

from lockstep.cli.console import warn_if_programs_run_as_root


@pytest.mark.parametrize(("service", "printed"), [({"programsWarning": "as root"}, "warning: as root\n"), ({}, "")])
def test_a_warning_is_one_line_of_standard_error(
    service: dict[str, str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_if_programs_run_as_root(service)
    assert tuple(capsys.readouterr()) == ("", printed)
