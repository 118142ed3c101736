"""Containers that graft writes are those that ExecuTorch's exporter writes of the same program."""

import io
import struct

import pytest
import torch
from executorch.exir import schema
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from torch.utils import _pytree as pytree

from graft._fb.executorch.ExecutionPlan import ExecutionPlanT
from graft._fb.executorch.Program import ProgramT
from graft.exporter import pte, torch_export
from graft.llm import container
from graft.llm.lower import lower


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 5)

    def forward(self, x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x) * n, x.argmax(1)


def lowered(net: torch.nn.Module, method: str):
    rows, n = torch.export.Dim("rows", max=2000), torch.export.Dim.DYNAMIC(min=2, max=9)
    with torch.no_grad():
        program = torch_export.export(net, (torch.randn(4, 3), 3), dynamic_shapes=({0: rows}, n))
    return lower(program, {}, None, method)


def split(content: bytes) -> tuple[int, bytes]:
    """Bytes of the program, and the segments."""
    magic, header, size, base, count = struct.unpack_from("<4sIQQQ", content, 8)
    assert (magic, header) == (b"eh00", 32) and len(content) == base + count
    return size, content[base:]


def test_executorch_reads_and_would_write_it(tmp_path):
    written = []
    data = {
        "a": b"x" * 200,
        "made late": pte.LazyData(5, lambda: (b"ab", b"cde"), written.append),
        "empty": b"",
    }
    methods = {name: lowered(Net(), name) for name in ("forward", "again")}
    container.write(tmp_path / "m.pte", methods, data, {"get_sizes": (3, 4), "is_one": True}, {"kv_length": 7, "device": "cpu"})
    ours = (tmp_path / "m.pte").read_bytes()
    found = deserialize_pte_binary(ours)
    theirs = bytes(serialize_pte_binary(found, extract_delegate_segments=True))
    assert deserialize_pte_binary(theirs) == found
    # Segments of the delegate and of data, each where ExecuTorch puts it.
    assert split(ours)[1] == split(theirs)[1]
    assert written == [2, 3]
    named = found.named_data
    assert {key: named.buffers[entry.buffer_index] for key, entry in named.pte_data.items() if key in data} == {
        "a": b"x" * 200,
        "made late": b"abcde",
        "empty": b"",
    }
    plans = {plan.name: plan for plan in found.program.execution_plan}
    assert list(plans) == ["forward", "again", "get_sizes", "is_one"]
    x, n, scaled, best = (value.val for value in plans["again"].values)
    assert (x.sizes, x.scalar_type.name, n.int_val) == ([2000, 3], "FLOAT", 9)
    assert (scaled.sizes, best.sizes, best.scalar_type.name) == ([2000, 5], [2000], "LONG")
    assert x.shape_dynamism == schema.TensorShapeDynamism.DYNAMIC_BOUND and x.allocation_info is None
    # Outputs have memory of the method's, one after the other.
    assert [t.allocation_info.memory_offset_low for t in (scaled, best)] == [0, 40000]
    assert plans["again"].non_const_buffer_sizes == [0, 56000]
    specs = {spec.key: bytes(spec.value) for spec in plans["again"].delegates[0].compile_specs}
    assert specs["graft.method"] == b"again" and specs["graft.option.kv_length"] == b"7"
    assert [value.val.int_val for value in plans["get_sizes"].values] == [3, 4]
    assert plans["is_one"].values[0].val.bool_val is True
    leaf, pair = (pytree.tree_structure(value) for value in (0, (0, 0)))
    assert plans["is_one"].container_meta_type.encoded_out_str == pytree.treespec_dumps(leaf)
    assert plans["get_sizes"].container_meta_type.encoded_out_str == pytree.treespec_dumps(pair)
    blobs = found.program.backend_delegate_data
    assert [bytes(blobs[plan.delegates[0].processed.index].data) for plan in plans.values() if plan.delegates] == [
        blob.data for _, blob in methods.values()
    ]


@pytest.mark.parametrize("sizes", [[], [0], [1], [127, 128, 129], [0, 0, 300]], ids=str)
def test_segments_lie_where_the_program_says(sizes):
    file = io.BytesIO()
    program = pte.table(ProgramT, executionPlan=[], constantBuffer=[], backendDelegateData=[])
    segments = [bytes([1 + i]) * size for i, size in enumerate(sizes)]
    pte.write(file, program, segments)
    size, content = split(file.getvalue())
    assert size % 4 == 0 and [s.offset % pte.ALIGNMENT for s in program.segments] == [0] * len(sizes)
    assert [content[s.offset : s.offset + s.size] for s in program.segments] == segments
    assert sum(content) == sum(map(sum, segments))  # zeros between them


def test_a_field_that_the_schema_has_not():
    with pytest.raises(AttributeError, match="ExecutionPlanT has no field 'nam'"):
        pte.table(ExecutionPlanT, nam="forward")
