"""The differential tests of operators: many small calls, and at the end a look at whether all operators had some."""

import pytest
import torch

COVERAGE = "coverage_test.py"


@pytest.fixture(scope="module", autouse=True)
def one_thread_for_eager():
    """On tensors this small the threads of eager cost more than they bring. Graft's have their own number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name == COVERAGE)


def pytest_deselected(items):
    for item in items:
        item.session.graft_deselected = True
