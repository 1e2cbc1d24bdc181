"""The testing cluster is a cluster."""

from collections.abc import Iterator

import pytest

from lockstep.clusters import AbstractCluster
from lockstep.testing.clusters import AbstractClusterConformance
from lockstep.testing.local_cluster import LocalCluster


class TestLocalCluster(AbstractClusterConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self) -> Iterator[None]:
        self._made = LocalCluster()
        yield
        self._made.shut_down()

    def cluster(self) -> AbstractCluster:
        return self._made
