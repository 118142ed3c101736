"""The list of tests that take long: made of durations, and of tests that there are."""

import re

import slow_tests
from longer import ROOT


def test_the_list_names_tests_that_there_are():
    tests = slow_tests.slow_tests()
    assert len(tests) > 300
    for test in tests:
        file, _, name = test.partition("::")
        function = name.partition("[")[0]
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE), f"{test}: write the list again"
        assert not test.startswith(slow_tests.KEPT)


def test_what_is_chosen():
    times = {
        "a_test.py::test_long": 5.0,
        "a_test.py::test_short": 1.0,
        "a_test.py::test_cases[1]": 4.0,
        "a_test.py::test_cases[2]": 3.0,
        "a_test.py::test_long_cases[1]": 30.0,
        "a_test.py::test_long_cases[2]": 20.0,
        "src/op/aten/view_test.py::test_view": 50.0,
    }
    assert slow_tests.chosen(times, limit=2, quickest=9) == [
        "a_test.py::test_cases[1]",
        "a_test.py::test_long",
        "a_test.py::test_long_cases[1]",
        "a_test.py::test_long_cases[2]",
    ]


def test_durations_are_read(tmp_path):
    report = tmp_path / "tests.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="src.op.a_test" name="test_x[1]" time="2.5"/>'
        '<testcase classname="src.op.a_test" name="test_y" time="0"><skipped/></testcase></testsuite></testsuites>'
    )
    assert dict(slow_tests.durations(report)) == {"src/op/a_test.py::test_x[1]": 2.5}
