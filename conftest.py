"""Settings of all Python tests."""

import collections
import contextlib
import functools
import gc
import os

import pytest

# Before any test module: the installed package, so that a test beside a module of python/graft belongs to it.
import graft  # noqa: F401


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption("--timed", action="store_true", help="run those that test/ci/slow_tests.txt lists too")
    parser.addoption("--part", metavar="I/N", help="run the I-th of N parts of the tests alone")


@pytest.hookimpl(optionalhook=True)  # of runs without xdist: test/fuzz/operators.py
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        """A process gets a whole file, since its fixtures are shared; and all tests of operators, since the last of them
        counts the cases of all; and one class of transformers alone, since each takes long and shares nothing."""

        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            if file in ("test/python/hf/tasks_test.py", "test/python/hf/population_test.py"):
                return nodeid
            return "src/op" if file.startswith("src/op/") else file

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m slow` selects by mark
def pytest_collection_modifyitems(config, items):
    from slow_tests import slow_tests

    if not config.getoption("--timed"):
        for item in items:
            if item.nodeid in slow_tests():
                item.add_marker(pytest.mark.slow)
    if part := config.getoption("--part"):
        from longer import in_part

        part, parts = map(int, part.split("/"))
        others = [item for item in items if not in_part(item.nodeid, part, parts)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if in_part(item.nodeid, part, parts)]
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: make test GRAFT_SLOW=1")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter):
    """What was left out and why, so that nothing skips in silence."""
    reasons = collections.Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped, by reason")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:6} {reason}")


def pytest_collection_finish():
    # Half a million objects of PyTorch's modules: without them the collector is done a good deal sooner, every time.
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_exported_programs_of_the_user(tmp_path_factory):
    os.environ["GRAFT_CACHE"] = str(tmp_path_factory.mktemp("graft-cache"))


@pytest.fixture(scope="session", autouse=True)
def _operators_prepared_once():
    """In each export and decomposition torch looks up every operator of C++ once per namespace, and registers a dozen
    kernels with each that it takes apart by itself: two thirds of the time that a small model takes. What it found stays
    found (again is for operators that a test registered), and what it registered is kept beside the operator."""
    import torch
    from torch._subclasses.fake_impls import op_implementations_dict as fake_rules
    from torch.export import decomp_utils, exported_program

    find, names, found = exported_program._collect_all_valid_cia_ops, [], set()
    override, kept = exported_program._override_composite_implicit_decomp, {}

    def key(op, function):
        # torch makes the same one each time anew, of a function without anything around it.
        if isinstance(function, functools.partial) and function.func.__closure__ is None:
            return op, function.func.__code__, function.args, *function.keywords.items()
        return op, function

    def find_new():
        registered = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if registered != names:
            found.clear()
            found.update(find())
            names[:] = registered
        return found

    def set_kernels(op, kernels):
        op.py_kernels.clear()
        op.py_kernels.update(kernels)
        op._dispatch_cache.clear()

    @contextlib.contextmanager
    def override_again(callables):
        before = {op: dict(op.py_kernels) for op in callables}
        known = {}
        for op, function in callables.items():
            at_first, during, rule = kept.get(key(op, function), (None, None, None))
            if op not in fake_rules and at_first == before[op]:
                known[op] = during, rule
        new = {op: function for op, function in callables.items() if op not in known}
        without_rule = [op for op in new if op not in fake_rules]
        with override(new):
            for op in without_rule:
                kept[key(op, new[op])] = before[op], dict(op.py_kernels), fake_rules[op]
            for op, (during, rule) in known.items():
                set_kernels(op, during)
                fake_rules[op] = rule
            try:
                yield
            finally:
                for op in known:
                    set_kernels(op, before[op])
                    del fake_rules[op]

    for module in exported_program, decomp_utils:
        module._collect_all_valid_cia_ops = find_new
    exported_program._override_composite_implicit_decomp = override_again
    yield
    for module in exported_program, decomp_utils:
        module._collect_all_valid_cia_ops = find
    exported_program._override_composite_implicit_decomp = override


@pytest.fixture(scope="module")
def one_thread():
    """For models that are too small for more: eager PyTorch's threads would wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
