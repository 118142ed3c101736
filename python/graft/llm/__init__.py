"""Export of causal language models: Hugging Face models and GGUF files become packages.

ops: the operators of graft that PyTorch does not have. interface: how transformers' models come to use them.
formats: what configuration and weights are read from (gguf, stored: files; checkpoint: weights by the names of a model).
trace: a model becomes a program, without its weights. export: `graft.export_llm`. generate: running such packages.
"""
