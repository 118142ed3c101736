"""graft: any torch.export program, compiled in C++ onto ggml.

Names are imported when first used: `load` and all that runs packages needs numpy alone. torch and executorch
(`pip install 'graft[export]'`) are for exports and Flow, transformers (`graft[hf]`) for its models.
"""

from __future__ import annotations

import warnings
from typing import Any

from graft import _extras
from graft import errors as _errors

_ERRORS = (
    "Busy",
    "Cancelled",
    "Error",
    "ExecutionError",
    "ExportError",
    "InternalError",
    "InvalidArgument",
    "InvalidProgram",
    "NotFound",
    "OutOfMemory",
    "SystemError",
    "Unavailable",
    "Unsupported",
)
_WHERE = {
    "load": "graft.runtime",
    "load_adapter": "graft.adapters",
    "load_ops": "graft.runtime",
    "unload_adapter": "graft.adapters",
    "Adapters": "graft.adapters",
    "register_op": "graft.runtime",
    "LoadOptions": "graft.runtime",
    "Arena": "graft.runtime",
    "CancelToken": "graft.runtime",
    "States": "graft.runtime",
    "Submitted": "graft.runtime",
    "Timing": "graft.runtime",
    "Method": "graft.runtime",
    "Model": "graft.runtime",
    "Pipeline": "graft.runtime.pipeline",
    "Flow": "graft.runtime.flow",
    "FlowStage": "graft.runtime.flow",
    "ModelInfo": "graft.runtime.registry",
    "models": "graft.runtime.registry",
    "unload": "graft.runtime.registry",
    "PackedInfo": "graft.runtime.packed",
    "pack": "graft.runtime.packed",
    "devices": "graft._C",
    "version": "graft._C",
    "compare": "graft.comparison",
    "Comparison": "graft.comparison",
    "export": "graft.exporter.export",
    "ExportOptions": "graft.exporter.options",
    "Detokenizer": "graft.runtime.tokenizer",
    "Tokenizer": "graft.runtime.tokenizer",
    "export_llm": "graft.llm.export",
    "BatchGenerator": "graft.llm.generate",
    "TextGenerator": "graft.llm.generate",
    "Grammar": "graft.llm.grammar",
    "GrammarVocabulary": "graft.llm.grammar",
    "TokenMask": "graft.llm.grammar",
    "Transcriber": "graft.llm.speech_to_text",
    "Speaker": "graft.llm.speaker",
    "Voice": "graft.llm.speaker",
    "export_speaker": "graft.llm.speaker_export",
    "load_audio": "graft.audio",
    "save_audio": "graft.audio",
    "ImageProcessor": "graft.vision",
    "export_image_model": "graft.vision",
    "load_image": "graft.vision",
    "compile": "graft.hf.compiler",
    "AutoModelForCausalLM": "graft.hf.auto",
    "GraftPartitioner": "graft.exporter.partitioner",
    "GraftBackend": "graft.exporter.backend",
    **dict.fromkeys(_ERRORS, "graft.errors"),
}

_MODULES = {"hf": "graft.hf", "ray": "graft.ray", "backend": "graft.exporter.backend", "partitioner": "graft.exporter.partitioner"}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _extras.import_for(f"graft.{name}", _MODULES[name])
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'graft' has no attribute '{name}'")
    value = getattr(_extras.import_for(f"graft.{name}", module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register() -> None:
    """ExecuTorch's runtime must know the delegate before it loads a package."""
    from graft import executorch

    if not executorch.available():
        return
    try:
        executorch.register()
    except _errors.Error as e:
        # Everything but ExecuTorch's runtime works; `graft.executorch.register()` raises this again.
        warnings.warn(f"graft: {e}", RuntimeWarning, stacklevel=3)


_register()
