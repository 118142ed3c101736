"""Settings of `graft.load` that few programs need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graft import _C


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """`options` of `graft.load`. A value out of range is a `graft.InvalidArgument` of that call.

    Kernels and plans:
        fast_kernels: False gives the plain lowering, for comparisons: ggml's operators wherever ggml has one, weights as
            they are stored.
        stored_plans: whether to take plans that the package holds (`plans` of `graft.export`). False plans anew.
        max_plans: plans that the program keeps, one for each set of input sizes; the least recently used is dropped first.
        merge_segments: a method is cut into segments where sizes depend on data. At most this many nodes that are
            needed only behind a cut move behind it, instead of passing their results across it.

    Limits, for untrusted packages. A package, or a call with sizes, that needs more raises `graft.Unsupported`:
        max_file_bytes: bytes of the package, and of each file of weights.
        max_nodes: nodes of all methods and sub-graphs.
        max_graph_calls: a method and the sub-graphs that it calls, each time.
        max_state_bytes: bytes of the mutable buffers, but for a KV cache.
        max_plan_bytes: bytes of one tensor, and of all intermediate ones together.
        max_plan_launches: kernels that one call launches.

    Checks:
        verify_hashes: compare the SHA-256 of every weight with the package's; a difference is a `graft.InvalidProgram`.
        strict_zero_copy: an input that would have to be copied (its layout or alignment), and a method in segments, whose
            outputs would be, is a `graft.InvalidArgument`. Without, `Model.counters` counts copies (io_copies).

    LoRA:
        max_adapter_rank: the largest rank of adapters (`graft.load_adapter`), 0: there are none.

    Files:
        map: map files, so that processes share their pages. A mapped file that somebody truncates ends the process
            (SIGBUS) when a page that is gone is used. False: they are read into memory, which costs their size and is
            not shared; packed_files does not apply.

    Packed weights on disk, which processes share:
        packed_files: whether to look for them beside the package (`graft.pack`) and in the folder. A file that cannot be
            used is skipped; `Model.stats` counts it (packed_files_refused) and says why (packed_refusal).
        packed_folder: where this and later loads of any process keep what they make of weights. "": GRAFT_PACKED_FOLDER,
            else nowhere. Who can write there can change results.

    Memory and queue:
        arena: a `graft.Arena` for intermediate tensors that models share which never run at the same time; of two calls
            at once the second raises `graft.Busy`.
        states: a `graft.States` for mutable buffers that models of several packages share by name; of two calls at once
            the second raises `graft.Busy`. Other types or sizes of a buffer are a `graft.InvalidArgument`.
        queue_capacity: calls that may wait (`Method.submit`).

    The KV cache, for programs with attention over one:
        kv_window_slack: layers with a window of the last w tokens keep w - 1 + kv_window_slack of them, where that is
            less than `kv_length`: kv_window_slack tokens can be taken back (`Model.kv_truncate`). A call of more tokens
            keeps copies of its keys and values until it ends.
        kv_encoder_length: for models with an encoder, the most tokens of the encoder output.

    Progress:
        on_phase: called with the name of each phase of the load as it begins. An exception from it ends the load.
    """

    fast_kernels: bool = True
    stored_plans: bool = True
    max_plans: int = 64
    merge_segments: int = 4
    max_file_bytes: int = 2**63 - 1
    max_nodes: int = 1 << 20
    max_graph_calls: int = 4096
    max_state_bytes: int = 2**63 - 1
    max_plan_bytes: int = 2**63 - 1
    max_plan_launches: int = 1 << 20
    verify_hashes: bool = False
    strict_zero_copy: bool = False
    map: bool = True
    packed_files: bool = True
    packed_folder: str = ""
    arena: _C.Arena | None = None
    states: _C.States | None = None
    queue_capacity: int = 16
    kv_window_slack: int = 512
    kv_encoder_length: int = 4096
    max_adapter_rank: int = 0
    on_phase: Callable[[str], None] | None = None


__all__ = ["LoadOptions"]
