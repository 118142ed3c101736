"""lm-eval on a server gives the scores of lm-eval on transformers: its requests are token ids, echoed with
log-probabilities and no new tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import graft
from serving import Server
from test_data import DATA

TASKS = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: {kind}
doc_to_text: "{text}"
doc_to_target: "{target}"
{more}
metadata:
  version: 1
"""
CONTEXT = 256


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    """Two of text that the model was not trained on: perplexity in windows, and which of four lines goes on a text."""
    folder = tmp_path_factory.mktemp("tasks")
    text = (DATA / "kjv3m" / "heldout.txt").read_text()
    passages = [text[at : at + 3000] for at in range(0, 12000, 3000)]
    (folder / "passages.json").write_text("".join(json.dumps({"text": passage}) + "\n" for passage in passages))
    lines = [line for line in text.splitlines() if 60 < len(line)][:96]
    choices = []
    for i in range(0, len(lines), 4):
        four = lines[i : i + 4]
        right = i // 4 % 4
        choices.append({"text": four[right][:40], "ends": [line[40:80] for line in four], "right": right})
    (folder / "ends.json").write_text("".join(json.dumps(choice) + "\n" for choice in choices))
    (folder / "rolling.yaml").write_text(
        TASKS.format(name="graft_rolling", file=folder / "passages.json", kind="loglikelihood_rolling", text="",
                     target="{{text}}", more="metric_list:\n" + "".join(f"  - metric: {m}\n" for m in
                     ("word_perplexity", "byte_perplexity", "bits_per_byte")))
    )  # fmt: skip
    (folder / "choice.yaml").write_text(
        TASKS.format(name="graft_choice", file=folder / "ends.json", kind="multiple_choice", text="{{text}}",
                     target="{{right}}", more='doc_to_choice: "{{ends}}"\ntarget_delimiter: ""\n'
                     "metric_list:\n  - metric: acc\n  - metric: acc_norm\n")
    )  # fmt: skip
    return folder


def scores(lm_eval, tasks: Path, back_end: str, /, **args: object) -> dict[str, float]:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    results = lm_eval.simple_evaluate(
        model=back_end, model_args=args, tasks=["graft_rolling", "graft_choice"], task_manager=manager, bootstrap_iters=0
    )["results"]
    return {
        f"{task} {metric}": value
        for task, found in results.items()
        for metric, value in found.items()
        if isinstance(value, float) and "stderr" not in metric
    }


def test_scores_are_those_of_transformers(tasks, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    if not (DATA / "kjv3m").is_dir():
        pytest.skip("no kjv3m in ../shared/data, and GRAFT_TEST_DATA names no folder that has it")
    folder = tmp_path / "kjv3m"
    shutil.copytree(DATA / "kjv3m", folder, copy_function=shutil.copyfile)
    expected = scores(lm_eval, tasks, "hf", pretrained=str(folder), dtype="float32", device="cpu", max_length=CONTEXT)
    package = graft.export_llm(folder, tmp_path / "kjv3m.pte")
    with Server(package, "--rows", 4) as server:
        found = scores(
            lm_eval, tasks, "local-completions", model="kjv3m", base_url=f"http://127.0.0.1:{server.port}/v1/completions",
            tokenizer=str(folder), tokenized_requests=True, num_concurrent=4,
            max_length=CONTEXT + 2,  # of which lm-eval keeps one for a new token, and one besides in windows
        )  # fmt: skip
    assert len(expected) == 5 and expected.keys() == found.keys()
    assert {name: round(value, 3) for name, value in found.items()} == {name: round(value, 3) for name, value in expected.items()}
