"""What `cache` keeps is the same for everybody who reads it."""

import itertools
import threading

import numpy as np

from lockstep.data.dataset import indexed


def test_threads_that_compute_one_element_at_once_get_one_value():
    both_compute, values = threading.Barrier(2), itertools.count()

    def compute(_):
        both_compute.wait(20)
        return next(values)

    cached = indexed.Cached(indexed.Mapped(indexed.InMemory((0,)), compute), {})
    found = []
    threads = [threading.Thread(target=lambda: found.extend(cached.get_elements(np.array([0])))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert next(values) == 2, "each of them computed it"
    assert len(set(found)) == 1
    assert cached.get_elements(np.array([0])) == found[:1]
