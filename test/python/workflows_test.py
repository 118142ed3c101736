"""The workflow files run targets that the Makefile has, and the issue templates ask for what `graft doctor` prints."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
TARGETS = set(re.findall(r"^([a-z][a-z-]*(?: [a-z][a-z-]*)*):", (ROOT / "Makefile").read_text(), re.M))
TARGETS = {target for names in TARGETS for target in names.split()}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_of_the_makefile(path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = [target for command in commands for target in re.findall(r"\bmake ([a-z-]+)", command)]
    assert called
    assert set(called) <= TARGETS


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_templates_ask_for_doctor(path):
    fields = {field["id"]: field for field in yaml.safe_load(path.read_text())["body"]}
    assert "graft doctor" in fields["doctor"]["attributes"]["label"]
    assert fields["doctor"]["validations"]["required"]
