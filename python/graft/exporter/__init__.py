"""From a PyTorch program to a package: `graft.export`, the partitioner and the serializer.

export: `graft.export`. partitioner, backend: graft's two halves of ExecuTorch's delegation. predicate: which nodes the
engine runs. serialize, program, writer, targets: a graph becomes the bytes of the IR. quantization: types that weights are
stored as. stored_plans: plans made at export. specs: what a package says to the delegate. pte: writes ExecuTorch's container.
torch_export: torch's own export, however precise cuDNN was told to be. quiet, exir: ExecuTorch's compiler without what its
imports print.
"""

from graft._extras import require

require("graft.exporter", "torch")
