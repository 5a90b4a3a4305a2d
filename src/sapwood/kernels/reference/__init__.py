"""The kernel vocabulary in plain torch, for any device: specification, test oracle and fallback of every other backend."""

from sapwood.kernels.reference.backend import ReferenceKernels

__all__ = ["ReferenceKernels"]
