"""Where ranks meet: the store behind an address, and which network interface gloo may use.

Knows no collectives. Invariant: ranks of one host talk over the loopback interface only, whatever the host's name resolves to and
whatever the environment says.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import torch.distributed

from sapwood.errors import ConfigError

_LOOPBACK = "127.0.0.1"
c10d: Any = torch.distributed  # its type stubs leave out the stores and process groups that it documents


def open_store(address: str, rank: int, size: int, timeout: timedelta) -> Any:
    """The key-value store at "file:///path" or "tcp://host:port"; over TCP, rank 0 serves it on that host's address only."""
    parts = urlsplit(address)
    if parts.scheme == "file" and parts.path:
        store = c10d.FileStore(parts.path, size)
        store.set_timeout(timeout)
        return store
    if parts.scheme != "tcp" or not parts.hostname or not parts.port:
        raise ConfigError(f"ranks cannot meet at {address!r}; give file:///path or tcp://host:port")
    if rank != 0:
        return c10d.TCPStore(parts.hostname, parts.port, size, is_master=False, timeout=timeout)
    # torch's own listener would accept connections on every interface
    listener = socket.create_server((parts.hostname, parts.port))
    descriptor = listener.detach()
    return c10d.TCPStore(
        parts.hostname, parts.port, size, is_master=True, timeout=timeout, master_listen_fd=descriptor, wait_for_workers=False
    )


def gloo_options(address: str, timeout: timedelta) -> Any:
    """Options of a gloo process group that listens on loopback, or on the interface that the address's host is reached by."""
    options = c10d.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=_own_address(urlsplit(address).hostname))]
    return options


def _own_address(host: str | None) -> str:
    """This host's address on the way to `host`; loopback for a file and for a local host."""
    if host is None or host == "localhost" or _is_loopback(host):
        return _LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: it only makes the kernel choose a route
        own: str = probe.getsockname()[0]
        return own


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
