"""Accelerators behind one small interface. Owns the choice of a device by name; knows no model.

Invariant: importing this package never touches a GPU; `create_device` does.
"""

from __future__ import annotations

import torch

from sapwood.device.api import Device, Graph, Launched, Stream
from sapwood.device.cpu import CpuDevice
from sapwood.device.cuda import CudaDevice
from sapwood.errors import ConfigError

__all__ = ["Device", "Graph", "Launched", "Stream", "create_device"]


def create_device(name: str = "auto", index: int = 0) -> Device:
    """The device called `auto`, `cpu` or `cuda`; `auto` is CUDA where there is a usable GPU. `index` counts this host's GPUs."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}; known: auto, cpu, cuda", param="device")
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return CpuDevice()
    if not torch.cuda.is_available():
        raise ConfigError("torch sees no CUDA GPU here; use --device cpu, or install a torch built for CUDA", param="device")
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"GPU {index} was asked for, but there are {torch.cuda.device_count()}; lower --tp-size", param="device"
        )
    return CudaDevice(index)
