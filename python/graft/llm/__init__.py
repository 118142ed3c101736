"""Export of causal language models: Hugging Face models and GGUF files become packages.

ops: the operators of graft that PyTorch does not have. interface: how transformers' models come to use them. source:
where configuration and weights come from (checkpoint: weights by the names of a model; gguf, stored: files). trace: a model
becomes a program, without its weights. export: `graft.export_llm`. generate: running such packages.
"""
