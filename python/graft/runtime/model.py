"""Running packages from Python: `graft.load(path)` gives a callable that takes and returns torch tensors or numpy arrays.

Inputs are bound where they lie (a copy is made only for those that are not contiguous). Results are allocated by torch or
numpy and written in place by the engine, so they belong to the caller and stay valid after later calls.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graft import _C, _pytree, executorch
from graft._fb.DType import DType
from graft.adapters import Adapters, Choice, rank_for
from graft.errors import InvalidArgument, InvalidProgram, Unsupported, typed
from graft.runtime import arrays
from graft.runtime.arrays import NUMPY, TORCH, Arrays
from graft.runtime.options import LoadOptions
from graft.runtime.submitted import Submitted

if TYPE_CHECKING:
    import torch

    Array = torch.Tensor | np.ndarray[Any, Any]

__all__ = ["Arena", "CancelToken", "Method", "Model", "States", "Timing", "load", "load_ops", "register_op"]

CancelToken = _C.CancelToken
Arena = _C.Arena
States = _C.States


class Timing(NamedTuple):
    """One kernel of a profiled run; nanoseconds from the start of the call."""

    node: str  #: name of the PyTorch node
    kernel: str  #: "graft layer_norm", "ggml MUL_MAT"
    start_ns: int  #: when it began
    end_ns: int  #: when it ended


class Copies:
    """Of inputs that do not lie as the engine reads them. strict: they are refused instead."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.count: int = 0
        self.bytes: int = 0

    def contiguous(self, value: Array, where: str) -> Array:
        if self.strict:
            strides, lazy = value.strides if NUMPY.holds(value) else value.stride(), ""
            if TORCH.holds(value) and (value.is_conj() or value.is_neg()):
                lazy = ", and it is a lazy conjugate or negative"
            raise InvalidArgument(
                f"{where}: must be contiguous (strict_zero_copy), its strides are {strides} "
                f"for sizes {tuple(value.shape)}{lazy}"
            )
        if NUMPY.holds(value):
            copy = value.copy(order="C")
        else:
            copy = value.detach().resolve_conj().resolve_neg().contiguous()
        self.count += 1
        self.bytes += copy.nbytes
        return copy


def flat_value(value: Any, where: Callable[[], str], keep: list[Any], copies: Copies) -> Any:
    """As the engine takes it; `keep` gets the array, whose address must stay valid until the run ends."""
    if not TORCH.holds(value):
        return _flat_array(value, where, keep, copies)
    number = arrays.torch_number(value.dtype)
    if number is None:
        raise InvalidArgument(f"{where()}: dtype {value.dtype} is not supported")
    if value.dim() > 8:
        raise InvalidArgument(f"{where()}: must have at most 8 dimensions, got {value.dim()}")
    if not value.is_cpu:
        raise InvalidArgument(f"{where()}: must be on the CPU, is on {value.device}")
    if not value.is_contiguous() or value.is_conj() or value.is_neg():
        value = copies.contiguous(value, where())
    keep.append(value)
    return (value.data_ptr(), number, tuple(value.shape))


def _flat_array(value: Any, where: Callable[[], str], keep: list[Any], copies: Copies) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"{where()}: must fit 64 bits, got {value}")
        return value
    array = value if NUMPY.holds(value) else arrays.as_numpy(value, where())
    if array is None:
        raise InvalidArgument(f"{where()}: must be a tensor, a number, a text or None, got {type(value).__name__}")
    number = NUMPY.number(array.dtype)
    if number is None:
        raise InvalidArgument(f"{where()}: dtype {array.dtype} is not supported")
    if array.ndim > 8:
        raise InvalidArgument(f"{where()}: must have at most 8 dimensions, got {array.ndim}")
    if not array.flags.c_contiguous:
        array = copies.contiguous(array, where())
    keep.append(array)
    return (NUMPY.address(array), number, array.shape)


def _arrangement(info: Mapping[str, Any], key: str, items: str) -> _pytree.TreeSpec | None:
    """How arguments or results nest, as the package says: text from a file, so nothing in it is taken for granted."""
    if not info[key]:
        return None
    try:
        spec = _pytree.loads(info[key])
        leaves = range(spec.num_leaves)
        if len(leaves) != len(info[items]):
            raise ValueError(f"it arranges {len(leaves)} values, the method has {len(info[items])} {items}")
        tree = _pytree.unflatten(leaves, spec)
        if key == "in_spec" and not (isinstance(tree, tuple) and list(map(type, tree)) == [tuple, dict]):
            raise ValueError("it must be a tuple of arguments and a dict of keyword arguments")
    except Exception as e:  # classes that the program registered may raise anything
        raise InvalidProgram(f"method '{info['name']}': its {key} cannot be read: {type(e).__name__}: {e}") from e
    return spec


class Method:
    """One method of a loaded package. Calls with the arguments that the module's `forward` took at export."""

    def __init__(self, session: _C.Session, info: Mapping[str, Any], copies: Copies, adapters: Adapters | None = None) -> None:
        self._session = session
        self._adapters = adapters
        self._copies = copies
        self._info = info
        self.name: str = info["name"]
        self._in_spec = _arrangement(info, "in_spec", "inputs")
        self._out_spec = _arrangement(info, "out_spec", "outputs")
        count = len(info["inputs"])
        # Positional tensors and numbers alone, as in most methods, skip pytree, which takes longer than small models.
        self._leaves = count if self._in_spec == _pytree.flatten(((0,) * count, {}))[1] else None
        self._one_result = self._out_spec == _pytree.LEAF
        self._gives_bf16 = any(output.get("dtype") == DType.bf16 for output in info["outputs"])
        self._may_be_direct = self._leaves is not None and info["segments"] == 1
        self._direct: Callable[[Any], list[Any] | None] | None = None  # made when the program uses torch

    def _flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        if len(args) == self._leaves and not kwargs and arrays.leaf_types().issuperset(map(type, args)):
            return list(args)
        if self._in_spec is None:
            if kwargs:
                raise InvalidArgument(f"method '{self.name}' takes positional arguments only, got {sorted(kwargs)}")
            return list(args)
        names = list(self._in_spec.children[1].context)
        if set(names) != set(kwargs):
            raise InvalidArgument(
                f"method '{self.name}' was exported with keyword arguments {names}, got {sorted(kwargs)}"
            )
        flat, spec = _pytree.flatten((tuple(args), {name: kwargs[name] for name in names}))
        if spec != self._in_spec:
            raise InvalidArgument(
                f"method '{self.name}': arguments are not arranged as at export.\n  expected {self._in_spec}\n  got {spec}"
            )
        return flat

    def __call__(
        self,
        *args: Any,
        out: Any = None,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        arena: Array | None = None,
        kv_rows: Sequence[int] | None = None,
        profile: list[Timing] | None = None,
        priority: int = 0,
        check: str | None = None,
        observe: Callable[[str, str, list[Array]], None] | None = None,
        observe_results: Callable[[str, int, Array], None] | None = None,
        adapter: Choice = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the method. Results are torch tensors when an argument is one, and numpy arrays when those among the
        arguments are numpy arrays or of another library with DLPack. Without any, they are torch tensors in a program
        that has imported torch. Numbers, texts and None are themselves.

        `out`: tensors or arrays to write the results into, arranged as the results. `timeout`: seconds after which the run stops
        with `graft.Cancelled`. `cancel`: a token whose `cancel()` stops the run from another thread. `arena`: memory
        lent for the intermediate tensors of this run, uint8 [n] on the CPU with at least `plan(...)["arena_bytes"]`
        bytes, aligned to 64. `kv_rows`: row b of the batch uses row kv_rows[b] of the cache. `profile`: gets a `Timing`
        for each kernel, in order; a run without one does not read the clock. `priority`: among runs that wait for CPUs
        the highest is next. `check="nan"` or `"finite"` raises `graft.ExecutionError`, which names the node, when a
        kernel makes NaN (or infinity) of inputs without it. `observe(node, kernel, outputs)`: called after each kernel
        with copies of what it computed; of nodes that were fused the first or the last gives the name.
        `observe_results(node, i, value)`: called with a copy of result i of each PyTorch node that a kernel completed; a
        node that was fused into a later one has none. `adapter`: name of one of `Model.adapters` for all rows of the batch,
        or a name or None for each.
        """
        plain = not kwargs and not priority and adapter is out is timeout is cancel is arena is kv_rows is profile is None
        plain = plain and check is observe is observe_results is None
        if self._may_be_direct and len(args) == self._leaves and plain:
            direct = self._direct or self._made_direct()
            results = None if direct is None else direct(args)
            if results is not None:
                return self._arranged(results)
        keep: list[Any] = []
        inputs = self._inputs(args, kwargs, keep)
        given = None if out is None else self._flatten_out(out)
        kind = self._results(keep) if given is None else arrays.kind_of(keep)
        placed: dict[int, Any] = {}

        def place(i: int, number: int, sizes: tuple[int, ...]) -> int:
            if given is None:
                placed[i] = kind.empty(number, sizes)
                return kind.address(placed[i])
            self._check_out(given[i], i, number, sizes)
            placed[i] = given[i]
            return _arrays_of(given[i]).address(given[i])

        timings: list[Any] | None = None if profile is None else []
        lent = None if arena is None else self._lent(arena)
        values = self._session.run(
            self.name, inputs, place, timeout or 0.0, cancel, priority, lent, list(kv_rows or ()), timings, check or "",
            _observer(observe, observe_results), kind is TORCH, self._chosen(adapter),
        )  # fmt: skip
        if profile is not None:
            profile.extend(Timing(*timing) for timing in timings or ())
        return self._arranged([placed.get(i, value) for i, value in enumerate(values)])

    def _made_direct(self) -> Callable[[Any], list[Any] | None] | None:
        if arrays.torch() is not None:
            self._direct = _C.TorchMethod(self._session, self.name, arrays.torch_dtypes()).call
        return self._direct

    def _results(self, given: Iterable[Any]) -> Arrays:
        """What the results of a call with these arrays are."""
        kind = arrays.kind_of(given)
        if self._gives_bf16 and kind is NUMPY:
            NUMPY.dtype(DType.bf16)  # refused before the run where numpy has none
        return kind

    def _arranged(self, results: list[Any]) -> Any:
        if self._one_result:
            return results[0]
        if self._out_spec is None:
            return results[0] if len(results) == 1 else tuple(results)
        return _pytree.unflatten(results, self._out_spec)

    def submit(
        self,
        *args: Any,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        priority: int = 0,
        adapter: Choice = None,
        **kwargs: Any,
    ) -> Submitted:
        """Queues a call and returns at once; calls of one model run in the order of submission. The arguments must not
        change until it ends. The options are those of a call. Raises `graft.Busy` when `queue_capacity` calls (`graft.LoadOptions`) wait already."""
        keep: list[Any] = []
        inputs = self._inputs(args, kwargs, keep)
        chosen = self._chosen(adapter)
        run = self._session.submit(self.name, inputs, timeout or 0.0, cancel, priority, [cancel, *keep], chosen)
        of_torch = self._results(keep) is TORCH
        return Submitted(run, of_torch, self._arranged)

    def plan(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The plan for a call with these arguments, made when there is none: arena_bytes, metadata_bytes, launches, and
        allocations, each with memory ("weight", "constant", "state", "arena", "input", "output"), index (which of
        these), bytes, entries (addresses that are rewritten when it moves) and address (of the last run; 0 before)."""
        keep: list[Any] = []
        return self._session.plan(self.name, self._inputs(args, kwargs, keep))

    def freeze_input(self, position: int) -> None:
        """Promises that this input, a tensor, keeps the address of its next run. A run that is given another one raises
        `graft.InvalidArgument`."""
        self._session.freeze_input(self.name, position)

    def _lent(self, arena: Any) -> tuple[int, int]:
        kind = _arrays_of(arena)
        if kind is None or not kind.fits(arena, DType.u8, None):
            found = type(arena).__name__ if kind is None else kind.shown(arena)
            raise InvalidArgument(f"arena of method '{self.name}': must be a contiguous uint8 tensor on the CPU, got {found}")
        return (kind.address(arena), arena.nbytes)

    def stored_plan(self, *args: Any, **kwargs: Any) -> bytes:
        """The plan for a call with these arguments, as packages hold it (`plans` of `graft.export`)."""
        keep: list[Any] = []
        return self._session.stored_plan(self.name, self._inputs(args, kwargs, keep))

    def stored_plans(self, *args: Any, **kwargs: Any) -> list[bytes]:
        """The same for any method. One in segments has several, whose sizes may depend on data: it is run once, states
        included, and the plans are those of the segments that ran."""
        keep: list[Any] = []
        return self._session.stored_plans(self.name, self._inputs(args, kwargs, keep))

    def _chosen(self, adapter: Choice) -> list[Any]:
        return [] if adapter is None or self._adapters is None else self._adapters.chosen(adapter)

    def _inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any], keep: list[Any]) -> list[Any]:
        """As the engine takes them; `keep` gets what must stay alive while it reads them."""
        flat = self._flatten(args, kwargs)
        return [
            flat_value(value, lambda i=i: f"input {i} of method '{self.name}'", keep, self._copies)
            for i, value in enumerate(flat)
        ]

    def _flatten_out(self, out: Any) -> list[Any]:
        flat, count = _pytree.flatten(out)[0], len(self._info["outputs"])
        if len(flat) != count:
            raise InvalidArgument(f"method '{self.name}' has {count} outputs, out= holds {len(flat)}")
        return flat

    def _check_out(self, array: Any, i: int, dtype: int, sizes: tuple[int, ...]) -> None:
        kind = _arrays_of(array)
        if kind is None or not kind.fits(array, dtype, sizes):
            found = type(array).__name__ if kind is None else kind.shown(array)
            wanted = "CPU tensor" if kind is not NUMPY else "array"
            raise InvalidArgument(
                f"out[{i}] of method '{self.name}' must be a contiguous {wanted} "
                f"{(kind or arrays.default()).dtype_name(dtype)}{list(sizes)}, got {found}"
            )

    @property
    def info(self) -> Mapping[str, Any]:
        """Inputs and outputs with dtypes and ranges of sizes."""
        return self._info


def _arrays_of(array: Any) -> Arrays | None:
    return next((kind for kind in (TORCH, NUMPY) if kind.holds(array)), None)


def _observer(observe: Callable[..., None] | None, observe_results: Callable[..., None] | None) -> Any:
    if observe is None and observe_results is None:
        return None

    def seen(node: str, kernel: str, outputs: list[Array], results: list[tuple[str, int, Array]]) -> None:
        if observe is not None:
            observe(node, kernel, outputs)
        if observe_results is not None:
            for result in results:
                observe_results(*result)

    return seen


class Model:
    """A loaded package: one session on one program. Methods are attributes; calling the model calls `forward`."""

    def __init__(
        self,
        program: _C.Program,
        session: _C.Session,
        *,
        strict_zero_copy: bool = False,
        adapters: Adapters | None = None,
    ) -> None:
        self._program = program
        self._session = session
        self._copies = Copies(strict_zero_copy)
        #: LoRA adapters by name; see `graft.load_adapter`.
        self.adapters: Adapters = adapters or Adapters(program)
        self.methods: dict[str, Method] = {
            name: Method(session, program.method(name), self._copies, self.adapters)
            for name in program.method_names()
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self.methods.get("forward")
        if method is None:
            if len(self.methods) != 1:
                raise InvalidArgument(f"the package has no method 'forward'; call one of {sorted(self.methods)}")
            (method,) = self.methods.values()
        return method(*args, **kwargs)

    def __getattr__(self, name: str) -> Method:
        methods = self.__dict__.get("methods", {})
        if name in methods:
            return methods[name]
        raise AttributeError(f"the package has no method '{name}'; it has {sorted(methods)}")

    def counters(self) -> dict[str, int]:
        """Counts since the model was loaded: runs, plan_hits, plan_misses, rewrites, io_copies, arena_bytes, ... Units as
        in graft.h (Counters). io_copies counts every input that was copied, because it is not contiguous or not aligned,
        and every output."""
        counters = self._session.counters()
        counters["io_copies"] += self._copies.count
        counters["io_bytes_copied"] += self._copies.bytes
        return counters

    def states(self) -> dict[str, Array]:
        """Copies of the mutable buffers, by their fully qualified names: torch tensors in a program that has imported
        torch, else numpy arrays."""
        out, kind = {}, arrays.default()
        for name, (address, dtype, sizes) in self._session.states():
            out[name] = kind.empty(dtype, sizes)
            ctypes.memmove(kind.address(out[name]), address, out[name].nbytes)
        return out

    def reset(self) -> None:
        """Sets every state to its value at load, and restarts the random numbers."""
        self._session.reset()

    def kv_lengths(self) -> list[int]:
        """Number of tokens in each row of the KV cache."""
        return self._session.kv_lengths()

    def kv_truncate(self, length: int) -> None:
        """Keeps the first `length` tokens of every row of the cache that has more.

        Raises `graft.InvalidArgument` when a layer with a window no longer holds what the next token sees (`kv_window_slack`
        of `graft.LoadOptions`); 0 always works.
        """
        self._session.kv_truncate(length)

    def kv_shortest(self, row: int) -> int:
        """The smallest length above 0 to which a row of the cache can be truncated."""
        return self._session.kv_shortest(row)

    def kv_select(self, rows: Sequence[int]) -> None:
        """Row i of the cache becomes a copy of what row `rows[i]` was; rows beyond become empty."""
        self._session.kv_select(list(rows))

    def kv_resize(self, rows: int, length: int) -> None:
        """Resizes the cache; its tokens stay."""
        self._session.kv_resize(rows, length)

    def fork(self) -> Model:
        """Another model of the same program with copies of the states."""
        fork = self._session.fork()
        return Model(self._program, fork, strict_zero_copy=self._copies.strict, adapters=self.adapters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all states to a file."""
        self._session.save(os.fspath(path))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Reads all states from a file that `save` wrote for the same program; changes nothing when that fails."""
        self._session.restore(os.fspath(path))

    def close(self) -> None:
        """Frees the memory; later calls raise `InvalidArgument`."""
        self._session.close()

    def stats(self) -> dict[str, Any]:
        """What the program holds and what its phases cost: phases (name, times, milliseconds, bytes), weight_count,
        weight_bytes, given_bytes, copied_count, copied_bytes, converted_count, converted_bytes, packed_count,
        packed_bytes, packed_file_bytes, packed_files_written, packed_files_refused, packed_refusal (a text),
        released_bytes, constant_bytes, graph_bytes, graph_bytes_freed, graphs_read_again. Units as in
        graft.h (ProgramStats)."""
        return self._program.stats()

    def shrink(self) -> None:
        """Frees the graphs, which only planning needs. New sizes then read them from the package again; if that has
        changed on disk since the load, new sizes raise `graft.InvalidProgram`, and sizes with a plan still run."""
        self._program.shrink()

    def describe(self) -> dict[str, Any]:
        """What `graft inspect --json` prints."""
        return json.loads(self._program.describe())

    @property
    def threads(self) -> int:
        """That compute one call."""
        return self._session.threads


def weight_view(name: str, tensor: Any, owner: list[Any]) -> tuple[int, int, tuple[int, ...]]:
    """A weight in memory of the caller. It is not copied, so it must lie as the engine reads it."""
    where = f"tensors['{name}']"
    if TORCH.holds(tensor):
        lies = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    elif NUMPY.holds(tensor):
        lies = tensor.flags.c_contiguous
    else:
        raise InvalidArgument(f"{where}: must be a tensor, got {type(tensor).__name__}")
    if not lies:
        raise InvalidArgument(f"{where}: must be contiguous and on the CPU")
    return flat_value(tensor, lambda: where, owner, Copies(strict=True))


def _memory(package: Any, owner: list[Any]) -> tuple[int, int]:
    """Address and size of an object with a buffer, which stays exported as long as `owner` holds the array."""
    try:
        array = np.frombuffer(package, np.uint8)
    except (TypeError, ValueError) as e:
        raise InvalidArgument(f"load: must be a path or an object with a buffer: {e}") from e
    owner.append(array)
    return (array.ctypes.data, array.nbytes)


def load_ops(path: str | os.PathLike[str]) -> None:
    """Loads a shared library of operators (`graft_register_ops` in graft/op.h), once: exports and loads that follow in
    this process have them. Raises `graft.SystemError` when it does not load, `graft.NotFound` when it has no such
    function, `graft.InvalidArgument` for an operator that is there already."""
    _C.load_ops(os.fspath(path))


@typed
def load(
    path: str | os.PathLike[str] | Any,
    *,
    weights: Iterable[str | os.PathLike[str]] = (),
    tensors: Mapping[str, Array] | None = None,
    device: str = "",
    threads: int = 0,
    seed: int = 0,
    buckets: Mapping[str, Sequence[int]] | None = None,
    padding: Mapping[str, float] | None = None,
    kv_rows: int = 1,
    kv_length: int = 4096,
    kv_dtype: str = "computed",
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    options: LoadOptions | None = None,
) -> Model:
    """Loads a package that `graft.export` wrote, ready to be called.

        model = graft.load("net.pte")
        y = model(x)                                # forward; torch tensors as at export, or numpy arrays
        model = graft.load("net.pte", threads=4, options=graft.LoadOptions(max_plans=8))

    path: of the package (.pte), or the package itself as an object with a buffer (bytes, mmap), which the model keeps
        alive. A file stays mapped: it may be removed, but not changed, while the model lives.
    weights: files with weights that the package leaves out: .ptd, .safetensors, .safetensors.index.json (its shards lie
        beside it), .gguf. They are found by name, and must have the sizes that the program expects.
    tensors: weights in memory by name, preferred to those in files. They must be contiguous and on the CPU, are used in
        place and kept alive; do not change them while the model lives.
    device: a name of `graft.devices()`. "": GRAFT_DEVICE, else the CPU.
    threads: that compute one call, at least 1. 0: GRAFT_THREADS, else as many as CPUs this process may use. Results do not
        depend on it.
    seed: of the random numbers that the program draws, 0 to 2**64 - 1.
    buckets: sizes that a dimension is padded up to: {"s77": [64, 128, 256]} by the program's name of it, or
        {"input_ids.1": [...]} by an input that has it. Sizes in between share plans; results are cut back to the size of
        the call; a size above the largest has a plan of its own. By default each size has its own plan.
        Over a KV cache it is the tokens' dimension, which is padded on the left (docs/partition.md).
    padding: padding value by input name: {"input_ids": 0, "attention_mask": 0}; default 0.
    kv_rows: sequences in the KV cache, for programs with attention over one.
    kv_length: tokens per sequence. `Model.kv_resize` changes both.
    kv_dtype: how keys and values are stored: "computed" (as the model computes them), "f32", "f16", "bf16", "q8_0" or "q4_0".
    adapters: LoRA adapters to begin with, paths by name; see `graft.load_adapter`, and max_adapter_rank of
        `graft.LoadOptions`, which is 64 by default where there are some.
    options: what is rarely set; see `graft.LoadOptions`.

    ExecuTorch's runtime runs the methods of a package with nodes that graft does not run (`allow_fallback` of
    `graft.export`), with its own kernels for these and graft for the others, within its limits: sizes have upper bounds, and
    the model has calls, `reset`, `counters` and `close` alone, with torch tensors. It takes the packages torch and
    executorch (`pip install 'graft[export]'`): without them such a package is a `graft.Unsupported`.

    Loading and calls need numpy alone. Results are torch tensors when an argument is one, else numpy arrays when there are
    arrays among the arguments (numpy's, or of any library with DLPack, on the CPU). A call without either gives torch
    tensors in a program that has imported torch, else numpy arrays. bfloat16 arrays are those of ml_dtypes. Where torch or
    transformers is not imported when a package is loaded, containers that are classes of theirs become the ones of Python
    that they derive from: outputs of transformers' models are dicts.

    Products of f32 matrices follow torch.set_float32_matmul_precision as it is now: with "medium", those of more than 8
    rows may be computed in bf16, which is faster where the CPU has bf16 dot products (AVX-512 BF16).

    Raises `graft.NotFound` for a file, weight or device that is not there, `graft.InvalidProgram` for a file that is no
    valid package (nothing in a package is trusted: loading imports and runs no code of it), `graft.Unsupported` for a
    program that this build or device cannot run, `graft.InvalidArgument` for anything wrong with the arguments.
    """
    options = options or LoadOptions()
    owner: list[Any] = []
    views = {name: weight_view(name, tensor, owner) for name, tensor in (tensors or {}).items()}
    source = os.fspath(path) if isinstance(path, (str, os.PathLike)) else _memory(path, owner)
    files = [os.fspath(f) for f in weights]
    try:
        program = _C.Program.load(
            source,
            weights=files,
            tensors=views,
            owner=owner or None,
            device=device,
            max_plans=options.max_plans,
            max_file_bytes=options.max_file_bytes,
            max_nodes=options.max_nodes,
            max_graph_calls=options.max_graph_calls,
            max_state_bytes=options.max_state_bytes,
            map=options.map,
            max_plan_bytes=options.max_plan_bytes,
            max_plan_launches=options.max_plan_launches,
            verify_hashes=options.verify_hashes,
            fast_kernels=options.fast_kernels,
            stored_plans=options.stored_plans,
            on_phase=options.on_phase,
            merge_segments=options.merge_segments,
            matmul_precision=arrays.matmul_precision(),
            packed_files=options.packed_files,
            packed_folder=os.fspath(options.packed_folder),
            max_adapter_rank=rank_for(adapters or {}, options.max_adapter_rank),
        )
    except Unsupported:
        interface = _C.package_interface(source)
        if not any(method["refusal"] for method in interface):
            raise
        own = {"kv_rows": (kv_rows, 1), "kv_length": (kv_length, 4096), "kv_type": (kv_dtype, "computed")}
        own["kv_encoder_length"] = (options.kv_encoder_length, LoadOptions().kv_encoder_length)
        delegate = {name: value for name, (value, default) in own.items() if value != default}
        executorch.require(interface)
        # It is made of what is here, and of torch.
        return importlib.import_module("graft.runtime.fallback").load_fallback(
            path,
            interface,
            weights=files,
            options=options,
            refused={"tensors": tensors, "buckets": buckets, "padding": padding, "adapters": adapters},
            delegate={"threads": threads, "device": device, "seed": seed, **delegate},
        )
    session = _C.Session(
        program,
        threads=threads,
        strict_zero_copy=options.strict_zero_copy,
        kv_rows=kv_rows,
        kv_length=kv_length,
        kv_type=kv_dtype,
        kv_window_slack=options.kv_window_slack,
        kv_encoder_length=options.kv_encoder_length,
        seed=seed,
        buckets={str(name): [int(size) for size in sizes] for name, sizes in (buckets or {}).items()},
        padding=dict(padding or {}),
        arena=options.arena,
        states=options.states,
        queue_capacity=options.queue_capacity,
    )
    model = Model(program, session, strict_zero_copy=options.strict_zero_copy)
    for name, adapter in (adapters or {}).items():
        model.adapters.load(name, adapter)
    return model


def register_op(target: str, model: Model, method: str = "forward") -> None:
    """Makes a method of a loaded package an operator: exports and loads that follow in this process run nodes with this
    target ("namespace.name.overload", of `torch.library`) as a part of their plans, with the memory and the threads of
    the run around them. Its arguments are the method's inputs in their order, tensors only. Raises `graft.NotFound` for
    another method, `graft.Unsupported` for one with mutable buffers, a cache or segments and for a program on a device,
    `graft.InvalidArgument` for a target that is malformed or registered already."""
    _C.register_op(target, model._program, method)
