"""The numbers of one device for strategies that take all devices: processes of their own have 1, 2, 3 and 4 of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.strategies.conftest import REFERENCES_VARIABLE
from tests.strategies.setups import SETUPS

from lockstep.testing.exactness import full_product, pairwise
from lockstep.testing.strategies import NUMS_REPLICAS

HERE = Path(__file__).parent
FILES = [HERE / f"test_exactness_{way}.py" for way in ("fit", "run", "pure")]
FEWER = [number for number in NUMS_REPLICAS if number < 8]
TAKERS = [setup for setup in SETUPS if setup.takes_all_devices]


def check_cells(cells, *, num_devices, mark, references):
    cells = [cell for cell in cells if cell.setup in TAKERS and cell.num_replicas == num_devices]
    names = " or ".join(f"{setup.name}_{num_devices}" for setup in TAKERS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-m",
        mark,
        "-k",
        names,
    ]
    done = subprocess.run(
        [*command, *map(str, FILES)],
        env={
            **os.environ,
            "LOCKSTEP_TEST_DEVICES": str(num_devices),
            "JAX_NUM_CPU_DEVICES": str(num_devices),
            REFERENCES_VARIABLE: str(references),
        },
        capture_output=True,
        text=True,
        cwd=HERE.parent.parent,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout
    assert f"{len(cells)} passed" in done.stdout, done.stdout
    assert not re.search("failed|error|skipped", done.stdout.splitlines()[-1])


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_devices", FEWER)
def test_pairwise(num_devices, references):
    check_cells(pairwise(SETUPS), num_devices=num_devices, mark="not product", references=references)


@pytest.mark.product
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("num_devices", FEWER)
def test_the_rest(num_devices, references):
    chosen = pairwise(SETUPS)
    rest = [cell for cell in full_product(SETUPS) if cell not in chosen]
    check_cells(rest, num_devices=num_devices, mark="product", references=references)
