"""Checkpoints: naming them, fetching them, reading them, whatever file they come in.

Owns the catalog, the GGUF and safetensors readers and the translation of both into one `ModelConfig` and one set of tensor
names. Does not know layers or kernels. Invariant: a damaged or unsupported file is a `WeightsError`, never a crash.
This package imports nothing here, so that `catalog` and `gguf` stay usable without torch.
"""
