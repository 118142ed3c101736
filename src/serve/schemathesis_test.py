"""schemathesis: requests made from the server's OpenAPI document, right and wrong ones, and answers checked against it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from serving import Server

# Schemas do not say which token ids, names and templates a model has, so what fits them may be refused.
LEFT_OUT = "positive_data_acceptance"


def test_answers_are_as_the_document_says(stories, minilm_package, net_package, tmp_path):
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("no schemathesis")
    models = (stories, minilm_package.path, "--tokenizer", f"minilm={minilm_package.tokenizer}", net_package)
    examples = os.environ.get("GRAFT_SCHEMATHESIS_EXAMPLES", "3")
    with Server(*models, "--rows", 4, "--context", 128, "--no-request-log") as server:
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json",
             "--max-examples", examples, "--exclude-checks", LEFT_OUT, "--request-timeout", "60", "--seed", "1"],
            capture_output=True, text=True, cwd=tmp_path,  # it leaves files there
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        generated, passed = re.search(r"(\d+) generated, (\d+) passed", done.stdout).groups()
        assert generated == passed and int(generated) > 1000
        assert [line for line in server.lines if line.get("level") == "error"] == []
