"""Running packages: loading, calls, pipelines of calls, tokenizers."""

from graft.runtime.model import Arena, CancelToken, Method, Model, States, Timing, load, load_ops, register_op
from graft.runtime.options import LoadOptions
from graft.runtime.submitted import Submitted

__all__ = [
    "Arena",
    "CancelToken",
    "LoadOptions",
    "Method",
    "Model",
    "States",
    "Submitted",
    "Timing",
    "load",
    "load_ops",
    "register_op",
]
