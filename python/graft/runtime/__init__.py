"""Running packages: loading, calls, pipelines of calls, tokenizers."""

from graft.runtime.model import CancelToken, Method, Model, load, load_ops

__all__ = ["CancelToken", "Method", "Model", "load", "load_ops"]
