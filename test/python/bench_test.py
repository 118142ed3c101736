"""The parts of bench/ that turn samples into statements, and the protocol of its workers."""

import asyncio
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def bench():
    """bench/ is a folder of scripts, not a package: importable for these tests only."""
    sys.path.insert(0, str(BENCH))
    before = set(sys.modules)
    try:
        yield {name: importlib.import_module(name) for name in (
            "workloads", "peers", "report", "run", "machine", "vision", "kernels", "chart", "cuda_engine", "cuda_llama",
            "neighbour", "server_load", "quality", "language",
        )}
    finally:
        sys.path.remove(str(BENCH))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(BENCH)):
                del sys.modules[name]


IDENTITY = {"versions": {"some": "1.0"}, "fingerprint": ""}


def entry_of(rounds):
    return {
        "title": "a title",
        "key": {"machine": {}, "workload": {}, "peers": {"graft": IDENTITY, "eager": IDENTITY}},
        "machine": {
            "cpu": "a cpu", "family": "1", "model": "2", "hypervisor": True, "usable_cpus": 2, "memory_gb": 1,
            "kernel": "6", "python": "3", "flags": ["avx2"],
        },
        "left_out": {"openvino": "not installed"},
        "peers": {"graft": {"peak_mb": 30.0, "imports_mb": 10.0, "load_ms": 5.0}},
        "rounds": rounds,
    }  # fmt: skip


def round_of(times, error=1e-6):
    return {
        "session": "2026-01-01",
        "load_average": 0.5,
        "ms": {"8 tokens": times},
        "max_abs_error": {"8 tokens": dict.fromkeys(times, error)},
    }


def workload_of(bench, **changes):
    fields = {
        "name": "w", "title": "a title", "model": "minilm", "threads": 2, "rounds": 3, "warmup": 1, "calls": 3,
        "tolerance": 1e-4, "peers": ("graft", "eager", "openvino"), "cases": ({"name": "8 tokens", "tokens": 8},),
        "goals": ({"case": "8 tokens", "peer": "eager", "at_most": 1.3},),
    }  # fmt: skip
    return bench["workloads"].Workload(**{**fields, **changes})


def test_no_peer_always_follows_the_same_one(bench):
    names = ["graft", "onnxruntime", "openvino", "eager"]
    orders = [bench["run"].turns(names, "8 tokens", number) for number in range(30)]
    assert all(sorted(order) == sorted(names) for order in orders)
    for peer in names:
        before = {order[order.index(peer) - 1] for order in orders if order.index(peer) > 0}
        assert before == set(names) - {peer}


def test_ratios_pair_only_turns_of_one_round(bench):
    # The machine was three times slower in the second round: the ratio of the medians of all samples would be 3.
    entry = entry_of([round_of({"graft": [1.0, 2.0, 9.0], "eager": [4.0]}), round_of({"graft": [3.0]}),
                      round_of({"graft": [6.0], "eager": [12.0]})])  # fmt: skip
    assert bench["report"].ratios(entry, "8 tokens", "graft", "eager") == [0.5, 0.5]


def test_table_states_ratios_goals_errors_and_who_is_missing(bench):
    entry = entry_of([round_of({"graft": [3.0], "eager": [2.0]}, error=1e-3)])
    text = bench["report"].markdown({"workloads": {"w": entry}}, {"w": workload_of(bench)})
    assert "| **graft** | 3.00 (3.00) | 1.0e-03 **above 0.0001** | 30 | 20 | 5 |" in text
    assert "| eager 1.0 | 1.50 (1.50 to 1.50) |" in text
    assert "8 tokens: at most 1.3 x eager: does not hold (1.50)" in text
    assert "openvino left out: not installed" in text
    assert "busy" not in text
    entry["rounds"][0]["load_average"] = 9.5
    assert "busy with other work (load average 9.5)" in bench["report"].markdown(
        {"workloads": {"w": entry}}, {"w": workload_of(bench)}
    )


def test_speed_beside_other_work_is_told_as_a_share(bench):
    cases = ({"name": "idle"}, {"name": "busy", "load": 0.5, "without": "idle"})
    done = round_of({"graft": [3.0], "eager": [2.0]})
    for key in ("ms", "max_abs_error"):
        [value] = done[key].values()
        done[key] = {"idle": value, "busy": value}
    done["ms"] = {"idle": {"graft": [3.0], "eager": [2.0]}, "busy": {"graft": [4.0], "eager": [8.0]}}
    text = bench["report"].markdown({"workloads": {"w": entry_of([done])}}, {"w": workload_of(bench, cases=cases, goals=())})
    assert "|  | busy (processor time left: 0.75) |" in text
    assert "| **graft** | 0.75 |" in text and "| eager 1.0 | 0.25 |" in text


@pytest.mark.parametrize("found", ["load = 0.1, without = \"9 %\"", "load = 0.1", "without = \"idle\""])
def test_a_load_without_its_case_is_an_error(bench, tmp_path, found):
    file = tmp_path / "workloads.toml"
    text = (BENCH / "workloads.toml").read_text()
    file.write_text(text.replace('load = 0.1, without = "idle"', found, 1))
    with pytest.raises(ValueError, match="10 % has a load, expected the case without it"):
        bench["workloads"].load(file)


def test_other_work_takes_its_share_and_ends(bench):
    with bench["neighbour"].beside(0, -1):
        pass
    before = os.times().children_user
    with bench["neighbour"].beside(0.5, min(os.sched_getaffinity(0))):
        time.sleep(0.3)  # the clock of processes counts in 10 ms
        assert os.times().children_user == before
    assert os.times().children_user > before  # it ran, has ended, and was waited for


def test_error_is_told_against_unrounded_weights(bench):
    language = bench["language"]
    p, q = np.log([[0.5, 0.25, 0.25]]), np.log([0.25, 0.25, 0.5])
    text = language.Text(0, np.arange(4), 4, unrounded=p + 3)  # a constant changes no distribution
    assert abs(language.divergence(q - 1, text) - (0.5 * np.log(2) - 0.25 * np.log(2))) < 1e-12
    assert language.divergence(np.float32(p[0]), text) < 1e-12
    assert language.divergence(np.array([2]), text) is None  # a token

    case = bench["quality"].CASE
    times = {"graft-language": [3200.0], "mistralrs": [6400.0]}
    done = {**round_of(times), "ms": {case: times}, "max_abs_error": {case: dict.fromkeys(times, 0.0)}}
    entry = entry_of([{**done, "kl": {case: {"graft-language": 2e-4}}}, {**done, "kl": {case: {"graft-language": 4e-4}}}])
    entry["key"]["peers"] = dict.fromkeys(times, IDENTITY)
    cases = ({"name": case, "prompt": 512, "steps": 32},)
    workload = workload_of(
        bench, cases=cases, goals=(), kind="language", model="qwen3-0.6b", weights="q8_0", peers=tuple(times)
    )
    text = bench["report"].markdown({"workloads": {"w": entry}}, {"w": workload})
    assert "| mean KL to f32 |" in text and "| 3.0e-04 |" in text
    [(engine, weights, kl, speed)] = bench["quality"].points({"workloads": {"w": entry}}, {"w": workload})
    assert (engine, weights, round(speed)) == ("graft", "q8_0", 10) and abs(kl - 3e-4) < 1e-12


def test_readme_table_is_rewritten_between_its_marks(bench, tmp_path):
    report, known = bench["report"], {"w": workload_of(bench, readme={"8 tokens": "a row"})}
    first = round_of({"graft": [3.0], "eager": [2.0], "openvino": [1.0]})
    entry = entry_of([first, round_of({"graft": [5.0], "eager": [2.0], "openvino": [4.0]})])
    entry["key"]["peers"]["openvino"] = IDENTITY
    section = report.readme_section({"workloads": {"w": entry}}, known)
    # The fastest peer is the one with the least median; the ratio is that of the rounds, 2 / 1 and 5 / 2.
    assert "| a row | 4.00 ms | eager 1.0: 2.00 ms | 2.00 |" in section
    assert report.readme_section({"workloads": {"w": entry}}, {"w": workload_of(bench)}).count("\n| ") == 2  # header
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
    for _ in range(2):
        report.update_readme(section, readme)
    assert readme.read_text() == f"before\n<!-- bench:begin -->\n{section}\n<!-- bench:end -->\nafter\n"
    readme.write_text("no marks")
    with pytest.raises(SystemExit, match="bench:begin"):
        report.update_readme(section, readme)


def test_readme_takes_no_partial_or_disturbed_results(bench):
    report, known = bench["report"], {"w": workload_of(bench)}
    entry = entry_of([round_of({"graft": [3.0], "eager": [2.0]})])
    assert report.fit_for_readme({"workloads": {"w": entry}}, known) == ["w"]  # openvino is left out
    entry["rounds"][0]["load_average"] = 9.5
    assert report.fit_for_readme({"workloads": {"w": entry}}, known) == []
    partial = entry_of([round_of({"graft": [3.0]})])
    assert report.fit_for_readme({"workloads": {"w": partial}}, known) == []
    assert report.fit_for_readme({"workloads": {}}, known) == []


def test_readme_shows_the_results_there_are(bench):
    report, known = bench["report"], bench["workloads"].load()
    if not report.fit_for_readme(report.read(report.RESULTS), known):
        pytest.skip("no results fit for the README")
    section = report.readme_section(report.read(report.RESULTS), known)
    assert section in report.README.read_text(), "python bench/report.py writes it"


def readme_rows(bench):
    begin, end = bench["report"].README_MARKS
    table = bench["report"].README.read_text().split(begin)[1].split(end)[0]
    return [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")][2:]


def test_readme_has_at_most_twelve_rows_and_each_is_chosen(bench):
    chosen = [label for workload in bench["workloads"].load().values() for label in workload.readme.values()]
    labels = [row[0] for row in readme_rows(bench)]
    assert 0 < len(labels) <= 12
    assert labels == [label for label in chosen if label in labels]


def test_numbers_of_the_readme_are_those_of_the_tables(bench):
    """results.md is in the tree, the samples are not: each row of the README is compared with its workload's section."""
    report = bench["report"]
    sections = {part.splitlines()[0]: part for part in report.TABLES.read_text().split("\n## ")[1:]}
    where = {label: (workload, case) for workload in bench["workloads"].load().values()
             for case, label in workload.readme.items()}  # fmt: skip
    for label, ours, best, ratio in readme_rows(bench):
        workload, case = where[label]
        peer, other = best.split(": ")
        tables = [[line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
                  for table in sections[workload.title].split("\n\n")]  # fmt: skip
        medians, ratios = [{row[0]: row[1:] for row in table[2:]} for table in tables if table][:2]
        column = workload.case_names.index(case)
        assert medians["**graft**"][column].split(" (")[0] == ours.split()[0], label
        assert medians[peer][column].split(" (")[0] == other.split()[0], label
        assert ratios[peer][column].split(" (")[0] == ratio, label


def test_a_round_is_complete_when_all_chosen_peers_ran(bench):
    entry = entry_of([round_of({"graft": [1.0], "eager": [1.0]}), round_of({"graft": [1.0]})])
    assert bench["run"].complete(entry, ["graft"]) == 2
    assert bench["run"].complete(entry, ["graft", "eager"]) == 1


@pytest.mark.parametrize(
    "peers, expected",
    [
        ({"graft": IDENTITY, "eager": IDENTITY}, True),
        ({"graft": IDENTITY}, True),
        ({"graft": {**IDENTITY, "fingerprint": "rebuilt"}}, False),
        ({"graft": IDENTITY, "openvino": IDENTITY}, False),
    ],
)
def test_what_a_rerun_may_add_to(bench, peers, expected):
    old = entry_of([])["key"]
    assert bench["run"].continues(old, {**old, "peers": peers}) is expected


def test_samples_of_another_machine_do_not_count(bench):
    old = entry_of([])["key"]
    assert not bench["run"].continues(old, {**old, "machine": {"cpu": "another"}})


def test_results_are_replaced_whole(bench, tmp_path):
    path = tmp_path / "results.json"
    bench["report"].write({"format": 1, "workloads": {}}, path)
    assert bench["report"].read(path) == {"format": 1, "workloads": {}}
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    path.write_text(json.dumps({"format": 99}))
    with pytest.raises(SystemExit, match="expected format 1, found 99"):
        bench["report"].read(path)


def test_every_entry_names_known_peers(bench):
    for workload in bench["workloads"].load().values():
        for peer in workload.peers:
            assert bench["peers"].get(peer).environment in ("project", "peers", "language")


def test_a_row_of_the_readme_for_an_unknown_case_is_an_error(bench, tmp_path):
    text = (BENCH / "workloads.toml").read_text().replace('readme = { "8 tokens"', 'readme = { "9 tokens"')
    file = tmp_path / "workloads.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match="unknown case: 9 tokens"):
        bench["workloads"].load(file)


def test_a_goal_of_an_unknown_case_is_an_error(bench, tmp_path):
    text = (BENCH / "workloads.toml").read_text().replace('case = "8 tokens"', 'case = "9 tokens"')
    file = tmp_path / "workloads.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match="9 tokens"):
        bench["workloads"].load(file)


def test_chosen_cases(bench, monkeypatch):
    monkeypatch.setenv("GRAFT_BENCH_CASES", "8 tokens,10 %")
    chosen = bench["workloads"].load()
    assert chosen["minilm-f32"].case_names == ["8 tokens"]
    assert {goal["case"] for goal in chosen["minilm-f32"].goals} == {"8 tokens"}
    assert chosen["qwen3-0.6b-q8_0-busy"].case_names == ["idle", "10 %"]
    assert len(chosen["qwen3-4b-q8_0"].case_names) == 4  # has none of them
    monkeypatch.setenv("GRAFT_BENCH_CASES", "8 tokens,9 tokens")
    with pytest.raises(ValueError, match="no workload has the case '9 tokens'"):
        bench["workloads"].load()


def test_long_texts_have_few_references(bench):
    """Eager PyTorch takes minutes for each: as of a large model there are two texts, and none on unrounded weights."""
    import language

    workloads = bench["workloads"].load()
    found = {name: language._texts(workloads[name]) for name in ("qwen3-0.6b-q8_0", "qwen3-0.6b-q8_0-long", "qwen3-4b-q8_0")}
    assert found == {"qwen3-0.6b-q8_0": (7, 1), "qwen3-0.6b-q8_0-long": (2, 1), "qwen3-4b-q8_0": (2, 1)}


def test_a_folder_of_a_large_model_has_the_values_of_its_file(bench, tmp_path, monkeypatch):
    import language_models
    import large_models
    import torch
    import transformers

    sizes = dict(vocab_size=300, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
    monkeypatch.setitem(language_models.CONFIGS, "tiny", dict(sizes, num_key_value_heads=2, head_dim=64))
    monkeypatch.setitem(language_models._KINDS, "tiny", language_models._KINDS["qwen3-4b"])
    language, folder = bench["language"], tmp_path / "model"
    monkeypatch.setattr(language, "LARGE", {"tiny"})
    workload = SimpleNamespace(model="tiny", weights="bf16", peers=["graft-language", "mnn"])  # the folder holds bf16 exactly
    language.make(workload, folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
    assert len(transformers.AutoTokenizer.from_pretrained(folder / "hf")) == 300
    texts = [language.tokens_of("tiny", i, 9) for i in range(2)]
    with torch.no_grad():
        whole = model(input_ids=torch.from_numpy(np.stack(texts))).logits[:, [4, 8]].numpy()
    for expected, found in zip(large_models.logits("tiny", "bf16", texts, [5, 9]), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    workload.peers = ["graft-language", "llama.cpp", "ik-llama.cpp"]
    language.make(workload, folder)
    assert sorted(file.name for file in folder.iterdir()) == ["bf16.gguf", "made.json"]


def test_an_absent_peer_ends_with_a_reason_on_one_line(bench, tmp_path):
    log = tmp_path / "log"
    with pytest.raises(bench["run"].PeerFailed, match="nobody"):
        bench["run"].call(sys.executable, "identify", "nobody", log=log, threads=1)


def test_worker_keeps_what_libraries_print_out_of_its_answers():
    program = "import os, worker, sys; sys.argv = ['worker', 'identify', 'eager']; worker.main(); print('noise')"
    done = subprocess.run([sys.executable, "-c", program], cwd=BENCH, capture_output=True, text=True, check=True)
    assert [json.loads(line)["fingerprint"] for line in done.stdout.splitlines()] == [""]
    assert "noise" in done.stderr


@pytest.mark.parametrize("model", ["mobilenet-v2", "resnet-18", "vit-s16", "whisper-tiny-encoder", "silero-vad"])
def test_work_of_networks_is_what_torch_counts(bench, model):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    vision = bench["vision"]
    module = vision.module(model)
    inputs = [torch.from_numpy(array) for array in vision.inputs(model, {"batch": 1})]
    # Attention as separate products, since the fused operator is not counted on a CPU.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*inputs)
    gflops, gb_read = vision.WORK[model]
    assert gflops == pytest.approx(counter.get_total_flops() / 1e9, rel=0.01)
    if gb_read:
        assert gb_read == pytest.approx(sum(p.numel() for p in module.parameters()) * 4e-9, rel=0.01)


def launch(kernel, inputs, outputs, explanation="the one kernel for it"):
    return {
        "kernel": kernel, "explanation": explanation,
        "inputs": [{"tensor": text} for text in inputs], "outputs": [{"tensor": text} for text in outputs],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("what", "past", "operations", "moved"),
    [
        (launch("graft matmul", ["f32[2, 8, 64]", "f32[64, 16]"], ["f32[2, 8, 16]"]), 0,
         {"f32": 2 * 2 * 8 * 16 * 64}, 4 * (1024 + 1024 + 256)),
        (launch("graft block_matmuls", ["f32[8, 64]", "u8[1088]", "u8[544]"], ["f32[8, 16]", "f32[8, 8]"]), 0,
         {"int8": 2 * 64 * 8 * 24}, 4 * (512 + 192) + 1632),
        # 40 channels take two panels of 32: 27 steps of the sum.
        (launch("graft packed_conv", ["f32[1, 3, 1, 9, 9]", "f32[1728]"], ["f32[1, 40, 1, 7, 7]"]), 0,
         {"f32": 2 * 40 * 49 * 27}, 4 * (243 + 1728 + 1960)),
        (launch("graft packed_linear", ["f32[1, 24, 1, 1, 9]", "f32[1536]"], ["f32[1, 40, 1, 1, 9]"]), 0,
         {"f32": 2 * 40 * 9 * 24}, 4 * (216 + 1536 + 360)),
        (launch("graft packed_linears", ["f32[1, 24, 1, 1, 9]", "f32[1536]", "f32[1536]", "f32[40]"],
                ["f32[1, 40, 1, 1, 9]", "f32[1, 40, 1, 1, 9]"]), 0,
         {"f32": 2 * 2 * 40 * 9 * 24}, 4 * (216 + 2 * 1536 + 40 + 2 * 360)),
        (launch("graft attention", ["f32[1, 2, 5, 8]", "f32[1, 2, 7, 8]", "f32[1, 2, 7, 8]"], ["f32[1, 5, 2, 8]"]), 0,
         {"f32": 4 * 2 * 5 * 7 * 8}, 4 * (80 + 112 + 112 + 80)),
        # One token after three reads four of a cache of 100.
        (launch("graft cached_attention", ["f32[1, 2, 1, 8]", "f32[1, 1, 1, 8]", "f32[1, 1, 1, 8]", "i64[1, 1]"],
                ["f32[1, 1, 2, 8]", "bf16[1, 1, 100, 8]", "bf16[1, 1, 100, 8]"]), 3,
         {"f32": 4 * 2 * 8 * 4}, 4 * (16 + 8 + 8 + 16) + 2 * 2 * 4 * 8),
        (launch("graft gather", ["f32[1000, 8]", "i64[2]"], ["f32[2, 8]"]), 0, {}, 2 * 64),
        (launch("graft elementwise", ["f32[4, 8]", "bool[]"], ["f32[4, 8]"]), 0, {}, 257),
    ],
)  # fmt: skip
def test_work_of_a_launch(bench, what, past, operations, moved):
    assert bench["kernels"].work(what, past) == (operations, moved)


def test_what_bounds_a_kernel(bench):
    kernels = bench["kernels"]
    probe = {"gflops_f32": 100.0, "gflops_bf16": 200.0, "gops_int8": 400.0, "gb_read": 10.0}
    rows = {
        "a": kernels.Row(1, 1.0, 2e9, {"int8": 300e9}),
        "b": kernels.Row(2, 1.0, 9e9, {"f32": 10e9}),
        "c": kernels.Row(3, 1.0, 20e9, {}),
        "d": kernels.Row(4, 1.0, 1e9, {"f32": 1e9}),
        "too little to tell": kernels.Row(5, 0.001, 1e9, {}),
    }
    told = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[-1] for line in kernels.table(rows, probe)[2:]}
    assert told == {"a": "int8 units |", "b": "memory |", "c": "caches |", "d": "neither |"}


def test_chart(bench, tmp_path):
    times = round_of({"graft": [2.0, 2.1, 2.2], "eager": [4.0, 4.1, 4.2]})
    times["limits"] = {"gflops_f32": 400.0, "gb_read": 40.0}
    results = {"workloads": {"w": entry_of([times, times])}}
    known = {"w": workload_of(bench, readme={"8 tokens": "a row & more"})}
    bench["chart"].draw(results, known, tmp_path / "bars.svg")
    drawn = ElementTree.fromstring((tmp_path / "bars.svg").read_text())
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "a row & more" in texts
    least = bench["report"].needed_ms(known["w"], results["workloads"]["w"], "8 tokens")
    assert f"graft {100 * least / 2.1:.0f} %" in texts and f"eager {100 * least / 4.1:.0f} %" in texts
    bars = [element for element in drawn.iter("{http://www.w3.org/2000/svg}rect") if element.get("fill") != "white"]
    assert len(bars) == 2 and float(bars[0].get("width")) == pytest.approx(4.1 / 2.1 * float(bars[1].get("width")), rel=0.01)
    with pytest.raises(SystemExit, match="nothing to draw"):
        bench["chart"].draw({"workloads": {}}, known, tmp_path / "none.svg")


@pytest.mark.parametrize(("steps", "fed"), [(0, [3, 3]), (2, [3] + [1] * 6)])
def test_a_turn_on_a_gpu_runs_untimed_before_it_is_timed(bench, steps, fed):
    calls = []

    class Positions(bench["cuda_engine"].Engine):
        def clear(self):
            self.length = 0

        def feed(self, tokens, past):
            assert past == self.length
            self.length += tokens.shape[1]
            calls.append(tokens.shape[1])
            return tokens[:, -1:].astype(np.float32)

    case = bench["cuda_engine"].Case("some", 2, 3, steps)
    tokens = np.arange(2 * case.length).reshape(2, case.length)
    seconds, logits = Positions().turn(case, tokens, compare=True)
    assert calls == fed
    assert seconds > 0
    assert [array[:, 0].tolist() for array in logits] == [tokens[:, 2].tolist(), tokens[:, -1].tolist()]


def test_llama_cpp_in_a_process_says_why_it_fails(bench, tmp_path):
    with pytest.raises(RuntimeError, match="llama"):  # the package, where it is not installed, or the file
        bench["cuda_llama"].LlamaCpp(tmp_path / "absent.gguf", "")


class _OpenAI(BaseHTTPRequestHandler):
    """What a server of one model answers, in two events."""

    asked: list[dict] = []

    def do_GET(self):
        self._answer(json.dumps({"data": [{"id": "its model"}]} if self.path == "/some/v1/models" else {}))

    def do_POST(self):
        self.asked.append({"path": self.path, **json.loads(self.rfile.read(int(self.headers["Content-Length"])))})
        events = [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, {"choices": [], "usage": {"completion_tokens": 2}}]
        self._answer("".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

    def _answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


def test_a_server_that_runs_already_is_measured(bench):
    load = bench["server_load"]
    with ThreadingHTTPServer(("127.0.0.1", 0), _OpenAI) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        endpoint, sample = load.Endpoint.of(url + "/some/v1"), load.Sample()
        asyncio.run(load.stream(endpoint, 7, SimpleNamespace(prompt=5, new=2, vocabulary=100), sample))
        with pytest.raises(RuntimeError, match="lists no model"):
            load.Endpoint.of(url + "/v1")
        server.shutdown()
    assert sample.tokens == 2 and sample.texts == {7: "ab"} and len(sample.first) == len(sample.between) == 1
    [asked] = _OpenAI.asked
    assert asked["path"] == "/some/v1/completions" and asked["model"] == "its model" and len(asked["prompt"]) == 5
    with pytest.raises(ValueError, match="expected http"):
        load.Endpoint.of("ftp://somewhere")
