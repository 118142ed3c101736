"""Running packages: loading, calls, pipelines of calls, tokenizers."""

from graft.runtime.model import CancelToken, Method, Model, load, load_ops
from graft.runtime.options import LoadOptions

__all__ = ["CancelToken", "LoadOptions", "Method", "Model", "load", "load_ops"]
