"""MiniLM's and MobileNetV2's shapes on a GPU: graft beside PyTorch, eager and compiled.

    python bench/cuda_models.py --export PROGRAMS      # once, where executorch is; a GPU is not needed
    python bench/cuda_models.py --programs PROGRAMS    # where the GPU is: torch, transformers, safetensors, graft

Weights are random, the same on both machines. All compute f32, results within 5e-6 of eager's largest value on the CPU.
Engines take turns; a turn ends when the result is in the CPU's memory, and takes the same input from there.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 5e-6
TURNS = 50


class MiniLM(nn.Module):
    """Sentence embeddings [B, 384] of ids and mask [B, T]."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.BertConfig(
            vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
            attn_implementation="sdpa",
        )  # fmt: skip
        self.bert = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def mobilenet() -> nn.Module:
    """The one of the test data in ../shared/data, else torchvision's."""
    path = ROOT.parent / "shared" / "data" / "nets.py"
    if not path.exists():
        import torchvision

        return torchvision.models.mobilenet_v2()
    spec = importlib.util.spec_from_file_location("nets", path)
    assert spec and spec.loader
    nets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nets)
    return nets.MobileNetV2()


def random(shape: tuple[int, ...], name: str) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


def fill(net: nn.Module) -> nn.Module:
    """The same values in every version of PyTorch: as large as layers of that size have them."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            values = random(tuple(parameter.shape), name)
            if parameter.dim() > 1:
                parameter.copy_(values * parameter[0].numel() ** -0.5 * 1.4)
            else:
                parameter.copy_(values * 0.1 + (1.0 if name.endswith("weight") else 0.0))
    return net.eval()


def minilm_call() -> tuple[torch.Tensor, ...]:
    mask = torch.ones(8, 128, dtype=torch.int64)
    mask[1::2, 100:] = 0
    return torch.arange(8 * 128).reshape(8, 128) * 29 % 30522, mask


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "MiniLM, 8 x 128 tokens": (MiniLM, minilm_call),
    "MobileNetV2, 8 x 224 x 224": (mobilenet, lambda: (random((8, 3, 224, 224), "image"),)),
}


def export(folder: Path) -> None:
    import graft

    folder.mkdir(parents=True, exist_ok=True)
    for i, (make, call) in enumerate(MODELS.values()):
        graft.export(fill(make()), call(), path=folder / f"model-{i}.pte", weights="external")


def measure(folder: Path, device: str) -> None:
    import safetensors.torch

    import graft

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for i, (name, (make, call)) in enumerate(MODELS.items()):
        net, args = fill(make()), call()
        weights = folder / f"model-{i}.safetensors"
        state = {k: v.detach().contiguous().clone() for k, v in net.state_dict().items()}
        safetensors.torch.save_file(state, weights)
        with torch.no_grad():
            expected = net(*args)
        model = graft.load(folder / f"model-{i}.pte", weights=[weights], device=device)
        gpu = net.to("cuda") if torch.cuda.is_available() else net
        compiled = torch.compile(gpu, mode="reduce-overhead")

        def on_gpu(run: nn.Module) -> torch.Tensor:
            with torch.no_grad():
                return run(*(arg.to(next(gpu.parameters()).device) for arg in args)).cpu()

        engines: dict[str, Callable[[], torch.Tensor]] = {
            "graft": lambda: model(*args), "torch": lambda: on_gpu(gpu), "torch.compile": lambda: on_gpu(compiled)
        }  # fmt: skip
        times: dict[str, list[float]] = {engine: [] for engine in engines}
        for run in engines.values():
            for _ in range(3):
                run()
        for _ in range(TURNS):
            for engine, run in engines.items():
                begin = time.perf_counter()
                result = run()
                times[engine].append(time.perf_counter() - begin)
                error = error_of(result, expected)
                if engine == "graft" and not error <= TOLERANCE:
                    raise SystemExit(f"{name}: graft is off by {error:.1e} of the largest value, at most {TOLERANCE}")
        plan = model.describe()["methods"][0]["plans"][0]
        there, here = (sum(plan["devices"].get(side, {}).values()) for side in (device, "cpu"))
        print(f"{name}: {there} of {there + here} launches on {device}; error {error_of(model(*args), expected):.1e}")
        ours = statistics.median(times["graft"])
        for engine, found in times.items():
            print(f"  {engine:14} {statistics.median(found) * 1e3:8.3f} ms  {statistics.median(found) / ours:6.2f}")


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", type=Path, metavar="PROGRAMS", help="write the programs, and measure nothing")
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--device", default="cuda0")
    options = parser.parse_args()
    if options.export:
        return export(options.export)
    folder = options.programs or ROOT / "build" / "bench" / "cuda-models"
    if not options.programs:
        export(folder)
    return measure(folder, options.device)


if __name__ == "__main__":
    main()
