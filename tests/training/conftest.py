import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/training" in item.path.as_posix():
            # Keras's variables take no `copy` argument in `__array__`, which NumPy 2 mentions when a model is saved.
            item.add_marker(pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"))
