import stat
from pathlib import Path

import pytest

from lockstep.errors import StorageWriteError
from lockstep.home import Home


def test_a_home_that_is_there_is_made_its_owners_alone(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home")
    home.path.mkdir(mode=0o755)
    home.path.chmod(0o755)
    home.create()
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    home.create()


def test_a_folder_of_many_people_is_no_home(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "shared")
    home.path.mkdir()
    home.path.chmod(0o1777)
    with pytest.raises(StorageWriteError, match="is shared with other users; set LOCKSTEP_HOME"):
        home.create()
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o1777
