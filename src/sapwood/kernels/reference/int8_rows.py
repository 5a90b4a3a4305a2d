"""What 8-bit pages make of keys and values: the specification of the native store, and its oracle in tests.

Pure functions. Invariant: a group of 32 dimensions of one token and head is rounded by its own scale alone (a half float).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SCALE_DIMS = 32
LARGEST_CODE = 127


def round_to_int8(x: Tensor) -> Tensor:
    """x float32 [..., D] as it is read back: scale = half(largest magnitude of the group / 127), code = nearest(x / scale)."""
    dim = x.shape[-1]
    groups = F.pad(x, (0, -dim % SCALE_DIMS)).view(*x.shape[:-1], -1, SCALE_DIMS)
    scales = (groups.abs().amax(dim=-1, keepdim=True) / LARGEST_CODE).half().float()
    inverse = torch.where(scales > 0, 1 / scales, 0.0)
    codes = (groups * inverse).round().clamp(-LARGEST_CODE, LARGEST_CODE)
    rounded: Tensor = codes * scales
    return rounded.flatten(-2)[..., :dim]
