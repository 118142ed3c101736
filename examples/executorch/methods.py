"""Two methods of one ExecuTorch program that share a buffer: one adds to it, the other reads it.

    python examples/executorch/methods.py [FILE.pte]
"""

import sys
import tempfile
from pathlib import Path

import torch
from executorch.runtime import Runtime

import graft


class Mean(torch.nn.Module):
    """The mean of all vectors seen so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("count", torch.zeros(1))


class See(Mean):
    def forward(self, x):  # [3]
        self.total.add_(x)
        self.count.add_(1)
        return self.count + 0


class Read(Mean):
    def forward(self, scale):  # [1]
        return self.total / self.count * scale


def main(path: Path) -> None:
    methods = {
        "see": {"model": See(), "args": (torch.zeros(3),)},
        "read": {"model": Read(), "args": (torch.ones(1),)},
    }
    graft.export(methods=methods, path=path)
    program = Runtime.get().load_program(str(path))
    see, read = program.load_method("see"), program.load_method("read")
    for i in range(4):
        see.execute((torch.tensor([1.0, 2.0, 3.0]) * i,))
    print("ExecuTorch:", read.execute((torch.ones(1),))[0].tolist())

    model = graft.load(path)  # the same package without ExecuTorch; a state of its own
    for i in range(4):
        model.see(torch.tensor([1.0, 2.0, 3.0]) * i)
    print("graft:     ", model.read(torch.ones(1)).tolist())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "mean.pte")
