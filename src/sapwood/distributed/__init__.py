"""Ranks and how they talk. Owns connections between the processes of one engine; knows no model.

Invariant: a lost peer is an EngineFailed within a bounded time, never a hang.
"""

from sapwood.distributed.group import Group, Ranks, SoloGroup, TorchGroup, TorchLink, connect
from sapwood.messages.control import ControlLink, SoloLink

__all__ = ["ControlLink", "Group", "Ranks", "SoloGroup", "SoloLink", "TorchGroup", "TorchLink", "connect"]
