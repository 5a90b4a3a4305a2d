"""The native CPU kernels: the compiled module `_native` and what records a model's steps for it.

Knows tensors only as packed weights and static buffers. Invariant: importing this package without the compiled module raises
ImportError at once, so that callers choose the torch reference instead of failing later.
"""

from sapwood.kernels.native import _native

__all__ = ["_native"]
