"""`graft export`: the command line of `graft.export_llm`. The C++ program hands its arguments over."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

_FAILED, _WRONG_USE, _INTERRUPTED = 1, 2, 130
_EXAMPLES = """examples:
  graft export Qwen/Qwen3-0.6B -o qwen3.pte
  graft export ./model -o model.pte --quantize q4_k --keep lm_head=q6_k
  graft export model.gguf -o model.pte --weights external
  graft export ./model -o model.pte --plan seq=1,128
  graft export ./model -o model.pte --stages 2"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"graft: {message} (see: graft export --help)", file=sys.stderr)
        sys.exit(_WRONG_USE)


def _parser() -> _Parser:
    parser = _Parser(
        prog="graft export",
        description="Makes a package of a language model, or of one that speaks.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="a folder or hub name of Hugging Face, or a .gguf file")
    parser.add_argument("-o", "--output", metavar="FILE.pte", required=True, help="the package to write")
    parser.add_argument(
        "--weights",
        choices=("package", "external"),
        default="package",
        help="copied into the package, or left in their files, which the package finds beside it (default: package)",
    )
    parser.add_argument(
        "--quantize", metavar="TYPE", help="store matrices as this ggml type: q8_0, q4_0, q4_k, q6_k, ..."
    )
    parser.add_argument(
        "--keep",
        metavar="NAME=TYPE",
        action="append",
        default=[],
        help="another type for the weights whose names end in the parts NAME (* stands for anything); repeat for more",
    )
    parser.add_argument(
        "--pack", action="store_true", help="pack quantized matrices as the kernels for x86 read them: starts faster"
    )
    parser.add_argument("--context", type=int, metavar="N", help="the most tokens of a prompt (default: the model's)")
    parser.add_argument(
        "--plan",
        metavar="NAME=SIZES",
        action="append",
        default=[],
        help="store the plans for these sizes: seq=1,128; repeat with batch or kept for all combinations",
    )
    parser.add_argument(
        "--plan-threads", type=int, default=0, metavar="N", help="threads of these plans (default: those of this machine)"
    )
    parser.add_argument(
        "--stages",
        type=int,
        default=1,
        metavar="N",
        help="divide the layers into N packages, FILE.stage0.pte and so on, for as many processes or hosts",
    )
    parser.add_argument("--text-only", action="store_true", help="of a model that takes pictures, its text part alone")
    return parser


def _rules(parser: _Parser, quantize: str | None, keep: Sequence[str]) -> dict[str, str] | None:
    rules = {} if quantize is None else {"*": quantize}
    for rule in keep:
        name, equals, kind = rule.partition("=")
        if not name or not equals or not kind:
            parser.error(f"--keep: expected NAME=TYPE, found '{rule}'")
        rules[name] = kind
    return rules or None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    rules = _rules(parser, options.quantize, options.keep)
    if not options.output.endswith(".pte"):  # checked first: the imports below take seconds
        parser.error(f"-o: expected a path that ends in .pte, found '{options.output}'")
    # Silence libraries' messages about themselves: they say nothing about the export.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from graft import _extras
    from graft.errors import Error

    try:
        from graft.llm.export import write_package
        from graft.llm.text_to_speech import speaks

        if speaks(options.model):
            for name in ("weights", "pack", "plan", "stages", "text_only"):
                if getattr(options, name) != parser.get_default(name):
                    parser.error(f"--{name.replace('_', '-')}: not for a model that speaks")
            from graft.llm.speaker_export import write_speaker

            write_speaker(options.model, options.output, None, rules, options.context, None, True)
            return 0
        extra: dict[str, Any] = {} if options.context is None else {"context": options.context}
        write_package(
            options.model,
            options.output,
            weights=options.weights,
            quantize=rules,
            pack=options.pack,
            progress=True,
            plans=options.plan,
            plan_threads=options.plan_threads,
            stages=options.stages,
            text_only=options.text_only,
            **extra,
        )
    except ModuleNotFoundError as e:
        message = _extras.explained("graft export", e) or f"graft export needs the Python package '{e.name}'"
        print(f"graft: {message}", file=sys.stderr)
        return _FAILED
    except (Error, OSError) as e:
        print(f"graft: {e}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("graft: interrupted; nothing was written", file=sys.stderr)
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
