"""Settings of all Python tests."""

import gc
import os

import pytest

# Before any test module: the installed package, so that a test beside a module of python/graft belongs to it.
import graft  # noqa: F401


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        """A process gets a whole file, since its fixtures are shared; and all tests of operators, since the last of them
        counts the cases of all."""

        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "src/op" if file.startswith("src/op/") else file

    return ByFile(config, log)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: make test GRAFT_SLOW=1")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish():
    # Half a million objects of PyTorch's modules: without them the collector is done a good deal sooner, every time.
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_exported_programs_of_the_user(tmp_path_factory):
    os.environ["GRAFT_CACHE"] = str(tmp_path_factory.mktemp("graft-cache"))


@pytest.fixture(scope="session", autouse=True)
def _operators_found_once():
    """In each export and decomposition torch looks up every operator of C++ once per namespace, a quarter of the time
    that a small model takes. What it found stays found: again is for operators that a test registered."""
    import torch
    from torch._export import utils

    find, known = utils._materialize_cpp_cia_ops, []

    def find_new():
        names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if names != known:
            find()
            known[:] = names

    utils._materialize_cpp_cia_ops = find_new
    yield
    utils._materialize_cpp_cia_ops = find


@pytest.fixture(scope="module")
def one_thread():
    """For models that are too small for more: eager PyTorch's threads would wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
