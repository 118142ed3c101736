"""Packages beside numpy, by the extra that installs them: `pip install 'graft[export]'`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

# Extra: packages that it brings. What is in none (a broken installation) is not explained here.
_EXTRAS = {
    "export": ("torch", "executorch", "flatbuffers", "torchao", "sympy"),
    "hf": ("transformers", "tokenizers", "safetensors", "huggingface_hub", "tqdm"),
}


_OF_HF = ("graft.hf", "graft.compile", "graft.AutoModel", "graft.export_llm", "graft export")


def import_for(what: str, module: str) -> Any:
    """The module, which `what` of the user's needs. A package that is missing is a ModuleNotFoundError which names it and
    the extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if message := explained(what, e):
            raise ModuleNotFoundError(message, name=e.name) from e
        raise


def explained(what: str, error: ModuleNotFoundError) -> str | None:
    """What to install when a package of an extra is missing."""
    missing = (error.name or "").partition(".")[0]
    # "hf" brings the packages of "export" too.
    of_hf = missing in _EXTRAS["hf"] or what.startswith(_OF_HF)
    if missing not in {package for packages in _EXTRAS.values() for package in packages}:
        return None
    extra = "hf" if of_hf else "export"
    return f"{what} needs the package '{missing}', which is not installed: pip install 'graft[{extra}]'"


def require(what: str, *packages: str) -> None:
    """The same for a module of graft that is about to import these packages."""
    for package in packages:
        if package in sys.modules:
            continue
        try:
            found = importlib.util.find_spec(package) is not None
        except ImportError:
            found = False
        if not found:
            raise ModuleNotFoundError(explained(what, ModuleNotFoundError(name=package)), name=package)
