"""The general route of `graft.compile`: models with a cache of any kind, attention of their own, recurrent layers.

A call is traced as it is, with the model's own cache object among its arguments: whatever tensors and numbers that holds
are inputs of the program, and what the model leaves in it are outputs. The cache stays the caller's object, so that what
transformers does with it between calls (beams, crops, copies) works as in eager PyTorch. Programs are made when a kind of
call occurs first, and that call is computed by eager PyTorch too: logits and cache must agree.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from graft.errors import Error, ExecutionError, ExportError, InvalidArgument, InvalidProgram, Unsupported
from graft.hf import causal, module_state
from graft.hf.guard import Guard, Trusted
from graft.hf.structure import Flat, build, flatten
from graft.hf.traced import Traced, trace
from graft.llm.untraceable import decides_by_values

CLOSE = 2e-3  # of the largest value of each result
_PROGRAMS = 64  # kept in memory, those used last
_TOKENS = 8  # code that decides by as many values as there are tokens, and by these at least, decides for each token
_MANY = 8  # of one kind: then a warning says so
_PROMPT, _STEPS = 6, 3  # of the probe
_SIZES_OF_PICTURES = frozenset((".image_grid_thw", ".video_grid_thw"))  # values that programs are for, and others found to be
_SMALL = 1024  # elements of a tensor whose values a program may be for
# Arguments whose first size is the batch, the first that is there.
_BATCHED = (".decoder_input_ids", ".input_ids", ".inputs_embeds", ".pixel_values", ".input_features", ".input_values")


def check_options(refused: Exception, **options: Any) -> None:
    """Raises Unsupported for options that are of the fast route alone."""
    for name, value in options.items():
        if value:
            raise Unsupported(
                f"{name}: only models of the fast route take it, and this is none: {refused}"
            ) from refused


def compile_general(model: Any, kind: type, device: str | None, threads: int, options: dict[str, Any], say: Any) -> Any:
    """Raises ExportError or Unsupported, which say why the model cannot be compiled. Leaves it as it is then."""
    engine = GeneralEngine(kind, device or "", threads)
    say("comparing with eager PyTorch")
    engine.begin(model)
    engine.prove()
    return take_over(model, class_of(kind), engine, options)


def take_over(model: Any, made: type, engine: Any, options: Mapping[str, Any]) -> Any:
    """made: the class that it has from now on. engine: `model.graft`."""
    model.graft = engine
    model._graft_options = options
    model._graft_dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    model.__class__ = made
    model._graft_guard = Guard(model)
    return model


@contextlib.contextmanager
def _plain_class(model: Any, kind: type) -> Iterator[None]:
    """Within it, the model and its parts are of transformers' classes, without engines."""
    parts = [part for part in model.modules() if part is model or isinstance(part, GeneralCompiled)]
    held = []
    for part in parts:
        own = {name: vars(part).pop(name) for name in ("graft", "_graft_guard") if name in vars(part)}
        held.append((part, type(part), own))
        part.__class__ = kind if part is model else type(part)._uncompiled
    try:
        yield
    finally:
        for part, compiled, own in held:
            part.__class__ = compiled
            vars(part).update(own)


class _Loaded:
    def __init__(self, traced: Traced, model: Any, seconds: float) -> None:
        self.traced, self.model, self.seconds = traced, model, seconds
        self.compared: set[frozenset[str]] = set()  # with these open sizes 1
        self.calls, self.milliseconds = 0, 0.0


class GeneralEngine:
    """`model.graft` of a model of the general route."""

    route = "general"
    positions = "its own"

    def __init__(self, kind: type, device: str, threads: int, causal: bool = True, method: str = "forward") -> None:
        """causal: a decoder, which is called with the tokens that go on. Others are traced as they are called, without
        a probe before. method: what is computed."""
        self._kind, self._device, self._threads, self.causal, self._method = kind, device, threads, causal, method
        self._lock = threading.RLock()
        self._clear()
        self.counts = dict.fromkeys(("calls", "traced", "compared", "dropped", "reloaded"), 0)

    def _clear(self) -> None:
        self._twin: Any = None
        self._weights: dict[int, Any] = {}
        self._given: dict[str, torch.Tensor] = {}
        self._programs: OrderedDict[int, _Loaded] = OrderedDict()
        self._counters: frozenset[tuple[type, str]] = frozenset()
        self._valued = _SIZES_OF_PICTURES
        self._decides = False  # by values of any tensor
        self._roles: dict[str, tuple[set[int], set[int]]] = {}
        self._held: dict[str, Any] = {}  # state of the model's modules

    def __deepcopy__(self, memo: dict[int, Any]) -> GeneralEngine:
        """Without programs: the copy has weights of its own."""
        return GeneralEngine(self._kind, self._device, self._threads, self.causal, self._method)

    def engine_of(self, method: str) -> GeneralEngine:
        return self

    def forget(self) -> None:
        """Programs are made again, since weights have other values now."""
        with self._lock:
            self._clear()
            self.counts["reloaded"] += 1

    # --- the model ---

    def begin(self, model: Any) -> None:
        """Takes the weights of the model, in float32, and learns which sizes of its cache follow from the call."""
        shared = {id(t): _shared(t) for t in (*model.parameters(), *model.buffers())}
        with _plain_class(model, self._kind):
            self._twin = copy.deepcopy(model, dict(shared))
        own = (*self._twin.parameters(), *self._twin.buffers())
        self._weights = {id(tensor): tensor for tensor in own}
        versions = [tensor._version for tensor in own]
        before = module_state.Attributes(self._twin)
        if self.causal:
            self._learn(before)
        if any(tensor._version != version for tensor, version in zip(own, versions)):
            self._prepare(model, before)
        self._given = {name: tensor.detach().contiguous() for name, tensor in self._twin.named_parameters()}

    def _prepare(self, model: Any, before: module_state.Attributes) -> None:
        """The first call changed weights, of the model too where the twin shares them, and noted that (RWKV)."""
        shared = {id(t) for t in (*model.parameters(), *model.buffers())} & set(self._weights)
        if shared:
            module_state.put(model, module_state.of(self._twin, before.changed(self._twin).keys() - self._held.keys()))

    def _learn(self, before: module_state.Attributes) -> None:
        """Roles of the dimensions of what the model gives back, seen by calls of other sizes, and what it keeps in its
        modules. before: any call."""
        self._eager_sizes(2, 5)
        once = before.changed(self._twin)
        first = module_state.of(self._twin, once)
        found = [self._eager_sizes(*sizes, once) for sizes in ((2, 5), (3, 5), (2, 9))]
        # Plain values that the first call alone changed are how the twin is from now on.
        settled = {name for name, value in module_state.of(self._twin, once).items() if module_state.same(first[name], value)}
        self._held = {name: value for name, value in before.changed(self._twin).items() if name not in settled}
        for path, sizes in found[0].items():
            others = [one.get(path, ()) for one in found[1:]]
            if any(len(one) != len(sizes) for one in others):
                continue
            rows, tokens = ({i for i, size in enumerate(one) if size != sizes[i]} for one in others)
            self._roles[path] = (rows, tokens)

    def _eager_sizes(self, rows: int, tokens: int, state: Any = ()) -> dict[str, tuple[int, ...]]:
        ids = _random_ids(self._twin, rows, tokens)
        try:
            with torch.no_grad():
                output = self._kind.forward(self._twin, input_ids=ids, use_cache=True)
        except Exception as e:  # whatever the model's code raises
            if rows == 2 and tokens == 5:
                raise ExportError(
                    f"{self._kind.__name__}: eager PyTorch cannot run it on [{rows}, {tokens}] tokens: {type(e).__name__}: {e}"
                ) from e
            return {}
        kept = flatten({module_state.NAME: module_state.of(self._twin, state)})
        flat = flatten(output)
        flat.paths.extend(kept.paths)
        flat.tensors.extend(kept.tensors)
        return {path: tuple(tensor.shape) for path, tensor in zip(flat.paths, flat.tensors)}

    # --- calls ---

    def run(self, model: Any, given: dict[str, Any]) -> Any:
        with self._lock:  # calls follow each other: a session has one run at a time
            if self._twin is None:
                self.begin(model)
            return self._run(given)

    def _run(self, given: dict[str, Any]) -> Any:
        if self._held:
            given = {**given, module_state.NAME: self._held}
        flat = self._flat(given)
        tried: list[_Loaded] = []
        grown = True
        while True:
            before = self.counts["traced"]
            loaded, sizes = self._program(flat, given, tried, grown)
            try:
                ones = frozenset(name for name, size in sizes.items() if size == 1)
                if ones not in loaded.compared:
                    self._compare(loaded, sizes, flat)
                    loaded.compared.add(ones)
                found = self._finish(loaded, sizes, flat, given)
            except _NotOne:
                tried.append(loaded)
                grown = False
            except _OtherValues as e:
                if self.counts["traced"] > before:
                    if e.__cause__ is not None:
                        raise e.__cause__
                    raise Unsupported(
                        f"{self._kind.__name__}: expected the values {_said(loaded.traced.decided or ())}, by which its code "
                        "decided while it was traced for this call, found others in the program"
                    ) from e
                tried.append(loaded)
            else:
                self.counts["calls"] += 1
                return found

    def _flat(self, given: dict[str, Any]) -> Flat:
        return flatten(given, self._counters, valued=self._valued)

    def _program(
        self, flat: Flat, given: dict[str, Any], tried: Sequence[_Loaded], grown: bool
    ) -> tuple[_Loaded, dict[str, int]]:
        """tried: those that are for other values. grown: a new one may be for batches of any size."""
        for key in reversed(self._programs):
            loaded = self._programs[key]
            if loaded not in tried and (sizes := loaded.traced.sizes_of(flat)) is not None:
                self._programs.move_to_end(key)
                return loaded, sizes
        started = time.perf_counter()
        try:
            traced = self._traced(flat, grown)
        except ExportError as e:
            if not self._more_is_known(flat, e):
                raise
            traced = None
        if traced is None:  # after the first error, which would be taken for the cause of a second one
            flat.__dict__.update(vars(self._flat(given)))
            return self._program(flat, given, tried, grown)
        decided = len(traced.decided or ())
        if self.causal and decided >= max(_tokens(flat), _TOKENS):
            raise Unsupported(
                f"{self._kind.__name__} cannot be traced: its code decides by values of {decided} tensors in a call of "
                f"{_tokens(flat)} tokens; each step of a text would need a program of its own"
            )
        if (counted := _counted(flat, traced)) - self._counters:
            self._counters |= counted  # they are numbers of the call from now on
            again = self._flat(given)
            if again.structure != flat.structure:
                flat.__dict__.update(vars(again))
                return self._program(flat, given, tried, grown)
        if (sizes := traced.sizes_of(flat)) is None:
            raise Unsupported(
                f"{self._kind.__name__}: expected a program for the sizes {[list(t.shape) for t in flat.tensors]}, found "
                f"one for {traced.sizes} where {traced.bounds or 'nothing'} holds"
            )
        loaded = _Loaded(traced, self._load(traced), time.perf_counter() - started)
        self._programs[self.counts["traced"]] = loaded
        self.counts["traced"] += 1
        if len(self._programs) > _PROGRAMS:
            self._programs.popitem(last=False)
            self.counts["dropped"] += 1
        alike = sum(one.traced.structure == flat.structure for one in self._programs.values())
        if alike == _MANY:
            warnings.warn(
                f"graft.compile: {self._kind.__name__} has {alike} programs for calls of one kind, since its code decides by "
                "their sizes; each other size costs a trace (model.graft.stats())",
                RuntimeWarning,
                stacklevel=6,
            )
        return loaded, sizes

    def _more_is_known(self, flat: Flat, error: ExportError) -> bool:
        """Whether traces have values from now on that they did not have: of small arguments, then of all."""
        small = frozenset(path for path, tensor in zip(flat.paths, flat.tensors) if _tells_sizes(path, tensor))
        if not small <= self._valued:
            self._valued |= small
            return True
        if not self._decides and decides_by_values(error):
            self._decides = True
            return True
        return False

    def _traced(self, flat: Flat, grown_too: bool) -> Traced:
        """For any batch where the model's code admits it, and `grown_too`."""
        sizes = [tuple(tensor.shape) for tensor in flat.tensors]
        opened = [self._open(path, tensor.dim()) for path, tensor in zip(flat.paths, flat.tensors)]
        rows = next((s[0] for s, path in zip(sizes, flat.paths) if path in _BATCHED), None)
        if self._decides:
            return trace(self._twin, self._weights, flat, sizes, opened, None, self._method, flat.tensors)
        if rows is None or flat.valued or not grown_too:
            return trace(self._twin, self._weights, flat, sizes, opened, None, self._method)
        taken = {s[dim] for s, places in zip(sizes, opened) for dim in places}
        larger = next(n for n in range(3, 100) if n not in taken)
        grown = [self._grown(path, s, rows, larger) for path, s in zip(flat.paths, sizes)]
        with contextlib.suppress(Error):
            traced = trace(self._twin, self._weights, flat, grown, opened, larger, self._method)
            if flat.structure != traced.structure or traced.sizes_of(flat) is not None:
                return traced
        return trace(self._twin, self._weights, flat, sizes, opened, None, self._method)

    def _open(self, path: str, dims: int) -> list[int]:
        role = self._roles.get(path)
        if role is not None:
            return sorted(role[0] | role[1])
        if self.causal:
            return list(range(dims))
        if dims == 3 and path == ".position_ids":
            return [1, 2]  # [axes, batch, tokens]
        # Keys and values, tokens and what is computed of them, sound; pictures have the sizes that they have.
        return [0, 2] if dims == 4 and "[" in path else list(range(min(dims, 2 if dims < 4 else 1)))

    def _grown(self, path: str, sizes: tuple[int, ...], rows: int, larger: int) -> tuple[int, ...]:
        role = self._roles.get(path)
        if role is not None:
            dims = role[0]
        elif path.count(".") == 1 and "[" not in path and rows in sizes[:2]:
            dims = {sizes.index(rows)}
        elif not self.causal and sizes[:1] == (rows,):
            dims = {0}
        else:
            dims = set()
        return tuple(size // rows * larger if dim in dims else size for dim, size in enumerate(sizes))

    def _load(self, traced: Traced) -> Any:
        from graft.runtime import load

        given = {name: self._given[name] for name in traced.keys}
        return load(traced.package, tensors=given, device=self._device, threads=self._threads)

    def _computed(self, loaded: _Loaded, sizes: Mapping[str, int], tensors: Sequence[Any], numbers: Sequence[int]) -> Any:
        """Tensors and numbers of what the call leaves."""
        decided = loaded.traced.decided
        started = time.perf_counter()
        try:
            made = loaded.model([_plain(tensor) for tensor in tensors], list(numbers))
        except (ExecutionError, InvalidArgument) as e:
            if decided is not None:  # a number of the trace, or an index out of range on a way that this call does not take
                raise _OtherValues(str(e)) from e
            raise
        except InvalidProgram as e:  # code that drops sizes of 1, traced with others
            if not (ones := frozenset(name for name, size in sizes.items() if size == 1)):
                raise
            loaded.traced.ones -= ones
            raise _NotOne from e
        loaded.calls += 1
        loaded.milliseconds += (time.perf_counter() - started) * 1e3
        if decided and not all(map(torch.equal, made[-len(decided) :], decided)):
            raise _OtherValues
        from_where = {"given": tensors, "made": made}
        found = [from_where[where][place] for where, place in loaded.traced.leaves]
        return found, [result(sizes) for result in loaded.traced.results]

    def _finish(self, loaded: _Loaded, sizes: Mapping[str, int], flat: Flat, given: dict[str, Any]) -> Any:
        held = dict(given)
        tensors, numbers = self._computed(loaded, sizes, flat.tensors, flat.numbers)
        after, output = build(loaded.traced.final, tensors, numbers, into=flat.objects)
        for name, tensor in held.items():
            same = not isinstance(tensor, torch.Tensor) or after[name] is tensor or f".{name}" in self._valued
            if not same:  # changed in place
                tensor.copy_(after[name])
        return output

    # --- comparison ---

    def _compare(self, loaded: _Loaded, sizes: Mapping[str, int], flat: Flat) -> None:
        """The call, on copies of its arguments, by the program and by eager PyTorch."""
        tensors, numbers = self._computed(loaded, sizes, [t.clone() for t in flat.tensors], flat.numbers)
        objects: list[Any] = []
        arguments = build(flat.structure, [t.clone() for t in flat.tensors], flat.numbers, made=objects)
        with torch.no_grad(), module_state.as_argument(self._twin, arguments):
            output = getattr(self._kind, self._method)(self._twin, **arguments)
        origins = {id(one): place for place, one in enumerate(objects)}
        expected = flatten((arguments, output), frozenset(self._counters), origins)
        found = flatten(build(loaded.traced.final, tensors, numbers), frozenset(self._counters))
        self.counts["compared"] += 1
        where = f"{self._kind.__name__}: expected what eager PyTorch gives on {self._say(flat)}"
        if expected.paths != found.paths or expected.numbers != found.numbers:
            raise Unsupported(f"{where}, found another cache: {_first_other(expected, found)}")
        for path, a, b in zip(expected.paths, expected.tensors, found.tensors):
            name = path.removeprefix("[1]").removeprefix("[0]").removeprefix(".")
            if a.shape != b.shape or a.dtype != b.dtype:
                raise Unsupported(
                    f"{where}, found {name} of {b.dtype} {list(b.shape)} instead of {a.dtype} {list(a.shape)}"
                )
            if (difference := _difference(a, b)) > CLOSE:
                raise Unsupported(f"{where}, found a difference of {difference:.2g} of the largest in {name}")

    def _say(self, flat: Flat) -> str:
        own = [(path.removeprefix("."), t) for path, t in zip(flat.paths, flat.tensors) if "[" not in path]
        named = [f"{name} {list(t.shape)}" for name, t in own if not name.startswith(module_state.NAME)]
        return ", ".join(named)

    def prove(self) -> None:
        """Short generations from prompts with and without padding, by this engine and by eager PyTorch: logits of all
        steps agree. Raises Unsupported."""
        held = dict(self._held)
        try:
            self._prove()
        finally:
            self._held = held

    def _prove(self) -> None:
        ids = _random_ids(self._twin, 2, _PROMPT)
        mask = torch.ones_like(ids)
        mask[1, :2] = 0
        for what, arguments in (
            ("a prompt", dict(attention_mask=torch.ones_like(ids))),
            ("a prompt padded on the left", dict(attention_mask=mask)),
        ):
            try:
                expected = _generated(self._twin, ids, arguments)
            except Exception as e:  # whatever the model's code raises
                if what == "a prompt":
                    raise ExportError(
                        f"{self._kind.__name__}: eager PyTorch cannot generate from [2, {_PROMPT}] tokens: "
                        f"{type(e).__name__}: {e}"
                    ) from e
                continue
            found = _generated(self._trial(), ids, arguments)
            if (difference := _difference(expected, found)) > CLOSE:
                raise Unsupported(
                    f"{self._kind.__name__}: expected the logits of eager PyTorch within {CLOSE} of the largest, found a "
                    f"difference of {difference:.2g} in {what} and {_STEPS} steps"
                )

    def _trial(self) -> Any:
        """The twin under this engine."""
        return _under(self, self._kind, self._twin, torch.float32)

    def stats(self) -> dict[str, Any]:
        """calls; traced, programs made; compared, calls that eager PyTorch computed too; dropped, programs beyond those
        that are kept; reloaded; and of each program sizes, bounds, seconds of its making, calls, milliseconds."""
        with self._lock:
            programs = [
                {
                    "sizes": [list(sizes) for sizes in one.traced.sizes[:3]],
                    "bounds": one.traced.bounds,
                    "seconds": one.seconds,
                    "calls": one.calls,
                    "milliseconds": one.milliseconds,
                }
                for one in self._programs.values()
            ]
            return {**self.counts, "route": self.route, "programs": programs}


class _NotOne(Exception):
    """The program is for other sizes than 1."""


class _OtherValues(Exception):
    """The program is for other values than those that the model's code decides by in this call."""


def _said(values: Sequence[torch.Tensor]) -> list[Any]:
    return [value.tolist() if value.numel() < 5 else list(value.shape) for value in values]


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in (torch.bfloat16, torch.float16):
        made = tensor.detach().float()
        return torch.nn.Parameter(made, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else made
    return tensor


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"expected tensors on the CPU, found one on {tensor.device}")
    return tensor.detach()


def _counted(flat: Flat, traced: Traced) -> set[tuple[type, str]]:
    """Attributes of objects whose integers a call changes."""
    return _changed_numbers(flat.structure, traced.final)


def _changed_numbers(before: Any, after: Any) -> set[tuple[type, str]]:
    held: dict[int, dict[str, Any]] = {}
    _collect(before, held, [0], use_origin=False)
    found: set[tuple[type, str]] = set()

    def look(node: Any) -> None:
        if not isinstance(node, tuple) or not node:
            return
        if node[0] == "object":
            _, kind, origin, parts = node
            was = held.get(origin, {}) if origin is not None else {}
            for name, part in parts:
                if _counts(was.get(name), part):
                    found.add((kind, name))
                look(part)
        elif node[0] == "list":
            for part in node[3]:
                look(part)
        elif node[0] == "dict":
            for _, part in node[3]:
                look(part)

    look(after)
    return found


def _counts(before: Any, after: Any) -> bool:
    """Whether an integer differs, or one of a list or dict."""
    if after[0] == "number":
        return True
    if before is None or before[0] != after[0]:
        return False
    if after[0] == "is":
        return before[1] is after[1] is int and before != after
    if after[0] == "list":
        return any(_counts(old, new) for old, new in zip(before[3], after[3]))
    if after[0] == "dict":
        old = dict(before[3])
        return any(_counts(old.get(key), new) for key, new in after[3])
    return False


def _collect(node: Any, held: dict[int, dict[str, Any]], count: list[int], use_origin: bool) -> None:
    """Attributes of the objects of a structure, by their place in it."""
    if not isinstance(node, tuple) or not node:
        return
    if node[0] in ("list", "dict", "object"):
        if not (node[0] == "list" and issubclass(node[1], tuple)):
            if node[0] == "object":
                held[count[0]] = dict(node[3])
            count[0] += 1
        for part in node[3]:
            _collect(part if node[0] == "list" else part[1], held, count, use_origin)


def _first_other(expected: Flat, found: Flat) -> str:
    for a, b in zip(expected.paths, found.paths):
        if a != b:
            return f"{b} instead of {a}"
    if len(expected.paths) != len(found.paths):
        return f"{len(found.paths)} tensors instead of {len(expected.paths)}"
    return f"numbers {found.numbers} instead of {expected.numbers}"


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    a, b = a.float(), b.float()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    finite = a.isfinite()
    a, b = a[finite], b[finite]
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-9)) if a.numel() else 0.0


def _random_ids(model: Any, rows: int, tokens: int) -> torch.Tensor:
    high = max(min(model.config.get_text_config().vocab_size, 1 << 16), 4)
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(3 if high > 8 else 0, high, (rows, tokens), generator=generator)


def _generated(model: Any, ids: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
    """Logits of greedy steps."""
    steps = dict(max_new_tokens=_STEPS + 1, min_new_tokens=_STEPS + 1, do_sample=False, num_beams=1, pad_token_id=0)
    options = dict(steps, eos_token_id=None, return_dict_in_generate=True, output_logits=True)
    with torch.no_grad():
        return torch.stack(model.generate(ids.clone(), **arguments, **options).logits)


def view(model: Any) -> Any:
    """A compiled model of the fast route under the general one: modules, settings and weights are shared."""
    kind, fast, options = type(model)._uncompiled, model.graft, model._graft_options
    if fast.general is None:
        fast.general = GeneralEngine(kind, options["device"] or "", options["threads"])
    return _under(fast.general, kind, model, model._graft_dtype)


def _under(engine: GeneralEngine, kind: type, model: Any, dtype: torch.dtype) -> Any:
    """An object with what the model has, which the engine computes."""
    made = kind.__new__(kind)
    made.__dict__.update({**vars(model), "graft": engine, "_graft_guard": Trusted(), "_graft_dtype": dtype})
    made.__class__ = class_of(kind)
    return made


class GeneralCompiled:
    """Mixed into the class of a model of the general route."""

    _uncompiled: type

    __deepcopy__ = causal.Compiled.__deepcopy__
    __reduce_ex__ = causal.Compiled.__reduce_ex__
    save_pretrained = causal.Compiled.save_pretrained
    _check_kept = causal.Compiled._check_kept
    get_compiled_call = causal.Compiled.get_compiled_call

    def init_continuous_batching(self, *_: Any, **__: Any) -> Any:
        raise Unsupported(
            "continuous batching (generate_batch): only models of the fast route take it; use generate() with a left-padded batch"
        )

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return self._graft_dtype


_classes: dict[tuple[Any, ...], type] = {}


def class_of(kind: type, methods: Sequence[str] = ("forward",), mixin: type = GeneralCompiled) -> type:
    """A class whose methods the engine in `graft` computes."""
    key = kind, tuple(methods), mixin
    if (made := _classes.get(key)) is None:
        own = {name: _method_of(kind, name) for name in methods}
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "_uncompiled": kind, **own}
        made = _classes[key] = type(kind.__name__, (mixin, kind), names)
    return made


def _method_of(kind: type, name: str) -> Any:
    plain = getattr(kind, name)
    signature = inspect.signature(plain)

    @torch.compiler.disable  # torch.compile of a compiled model calls it as it is
    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        given = dict(list(bound.arguments.items())[1:])
        for name_, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                given.update(given.pop(name_, {}))
        return _call(self, self.graft.engine_of(name), {name_: value for name_, value in given.items() if value is not None})

    return method


def _tokens(flat: Flat) -> int:
    """Of all texts of a call."""
    ids = (tensor for tensor, path in zip(flat.tensors, flat.paths) if path in (".decoder_input_ids", ".input_ids"))
    return next((tensor.numel() for tensor in ids), 0)


def _tells_sizes(path: str, tensor: torch.Tensor) -> bool:
    """Whether code may cut and loop by its values, as by those of `image_grid_thw`: an argument with a row or less for each
    picture, not for each token."""
    tokens = ("_ids", "mask", "position", "labels")
    plain = path.count(".") == 1 and "[" not in path and not any(word in path for word in tokens)
    return plain and not tensor.is_floating_point() and tensor.numel() <= _SMALL


def _with_positions(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Where a model counts positions by the values of its tokens (a picture's by its rows and columns), its own code does
    it ahead of the program."""
    if "position_ids" in given or "input_ids" not in given:
        return given
    part = next((one for one in model.modules() if hasattr(one, "compute_3d_position_ids")), None)
    if part is None:
        return given
    takes = inspect.signature(part.compute_3d_position_ids).parameters
    arguments = {name: given.get(name) for name in takes}
    if "inputs_embeds" in takes:
        arguments["inputs_embeds"] = torch.empty((*given["input_ids"].shape, 1), dtype=torch.float32)  # for its sizes
    positions = part.compute_3d_position_ids(**arguments)
    return given if positions is None else {**given, "position_ids": positions}


def _call(model: Any, engine: GeneralEngine, given: dict[str, Any]) -> Any:
    if model.training:
        raise Unsupported("training mode: a compiled model computes no gradients; call model.eval()")
    name = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    ids = given.get(name)
    if isinstance(ids, torch.Tensor) and (ids.dim() != 2 or 0 in ids.shape):
        raise InvalidArgument(f"{name}: expected [batch, tokens], found {list(ids.shape)}")
    mask = given.get("attention_mask") if engine.causal else None
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and bool((mask == 1).all()):
        del given["attention_mask"]  # as generate() does
    begins = ids is None or ids.shape[1] > 1
    if not begins and given.get("logits_to_keep") == 1:
        del given["logits_to_keep"]  # all there are
    if model._graft_guard.check(model, thorough=begins) is not None:
        model.graft.forget()
        model._graft_guard.take_weights(model)
    with torch.no_grad():
        return engine.run(model, given if engine.causal else _with_positions(model, given))


__all__ = ["GeneralCompiled", "GeneralEngine", "check_options", "class_of", "compile_general", "take_over", "view"]
