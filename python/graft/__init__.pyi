# What type checkers see of `graft`: its names are imported when first used, which they cannot follow.
# test/python/docs/types_test.py compares this with graft.__all__.
from graft import hf as hf
from graft import ray as ray
from graft._C import devices as devices
from graft._C import version as version
from graft.adapters import Adapters as Adapters
from graft.adapters import load_adapter as load_adapter
from graft.adapters import unload_adapter as unload_adapter
from graft.comparison import Comparison as Comparison
from graft.comparison import compare as compare
from graft.errors import Busy as Busy
from graft.errors import Cancelled as Cancelled
from graft.errors import Error as Error
from graft.errors import ExecutionError as ExecutionError
from graft.errors import ExportError as ExportError
from graft.errors import InternalError as InternalError
from graft.errors import InvalidArgument as InvalidArgument
from graft.errors import InvalidProgram as InvalidProgram
from graft.errors import NotFound as NotFound
from graft.errors import OutOfMemory as OutOfMemory
from graft.errors import SystemError as SystemError
from graft.errors import Unavailable as Unavailable
from graft.errors import Unsupported as Unsupported
from graft.exporter import backend as backend
from graft.exporter import partitioner as partitioner
from graft.exporter.backend import GraftBackend as GraftBackend
from graft.exporter.export import export as export
from graft.exporter.options import ExportOptions as ExportOptions
from graft.exporter.partitioner import GraftPartitioner as GraftPartitioner
from graft.hf.auto import AutoModelForCausalLM as AutoModelForCausalLM
from graft.hf.compiler import compile as compile
from graft.llm.export import export_llm as export_llm
from graft.llm.generate import BatchGenerator as BatchGenerator
from graft.llm.generate import TextGenerator as TextGenerator
from graft.llm.grammar import Grammar as Grammar
from graft.llm.grammar import GrammarVocabulary as GrammarVocabulary
from graft.llm.grammar import TokenMask as TokenMask
from graft.llm.speech_to_text import Transcriber as Transcriber
from graft.audio import load_audio as load_audio
from graft.audio import save_audio as save_audio
from graft.llm.speaker import Speaker as Speaker
from graft.llm.speaker import Voice as Voice
from graft.llm.speaker_export import export_speaker as export_speaker
from graft.runtime.flow import Flow as Flow
from graft.runtime.flow import FlowStage as FlowStage
from graft.runtime.model import Arena as Arena
from graft.runtime.model import CancelToken as CancelToken
from graft.runtime.model import Method as Method
from graft.runtime.model import Model as Model
from graft.runtime.model import States as States
from graft.runtime.model import Timing as Timing
from graft.runtime.model import load as load
from graft.runtime.model import load_ops as load_ops
from graft.runtime.model import register_op as register_op
from graft.runtime.options import LoadOptions as LoadOptions
from graft.runtime.packed import PackedInfo as PackedInfo
from graft.runtime.packed import pack as pack
from graft.runtime.pipeline import Pipeline as Pipeline
from graft.runtime.registry import ModelInfo as ModelInfo
from graft.runtime.registry import models as models
from graft.runtime.registry import unload as unload
from graft.runtime.submitted import Submitted as Submitted
from graft.runtime.tokenizer import Detokenizer as Detokenizer
from graft.runtime.tokenizer import Tokenizer as Tokenizer
from graft.vision import ImageProcessor as ImageProcessor
from graft.vision import export_image_model as export_image_model
from graft.vision import load_image as load_image

__all__ = [
    "Adapters",
    "Arena",
    "AutoModelForCausalLM",
    "BatchGenerator",
    "Busy",
    "CancelToken",
    "Cancelled",
    "Comparison",
    "Detokenizer",
    "Error",
    "ExecutionError",
    "ExportError",
    "ExportOptions",
    "Flow",
    "FlowStage",
    "GraftBackend",
    "GraftPartitioner",
    "Grammar",
    "GrammarVocabulary",
    "ImageProcessor",
    "InternalError",
    "InvalidArgument",
    "InvalidProgram",
    "LoadOptions",
    "Method",
    "Model",
    "ModelInfo",
    "NotFound",
    "OutOfMemory",
    "PackedInfo",
    "Pipeline",
    "Speaker",
    "States",
    "Submitted",
    "SystemError",
    "TextGenerator",
    "Timing",
    "TokenMask",
    "Tokenizer",
    "Transcriber",
    "Unavailable",
    "Unsupported",
    "Voice",
    "compare",
    "compile",
    "devices",
    "export",
    "export_image_model",
    "export_llm",
    "export_speaker",
    "load",
    "load_adapter",
    "load_audio",
    "load_image",
    "load_ops",
    "models",
    "pack",
    "register_op",
    "save_audio",
    "unload",
    "unload_adapter",
    "version",
]
