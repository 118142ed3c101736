"""ExecuTorch's compiler, imported without the warnings of the libraries that it imports. Modules that import
executorch.exir import this one first."""

from graft.exporter import quiet

with quiet.importing_executorch():
    import executorch.exir  # noqa: F401
