"""Products of quantised weights by format, shape and number of rows, beside what the memory can deliver.

Drives the native module: a program of many products over different weights, so that they come from memory and no Python runs
between them. Invariant: reading and products alternate in one run; without the compiled module there is a ConfigError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from rich.table import Table

from sapwood.bench.machine import Machine, machine
from sapwood.bench.measure import Spread, alternate, spread
from sapwood.bench.show import grid, number
from sapwood.errors import ConfigError
from sapwood.weights.ggml_types import GGML_TYPES, GgmlType

if TYPE_CHECKING:
    from sapwood.kernels.native import _native

READER = "read"
MEGABYTE = 1 << 20


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """[rows, k] times [k, n] with weights of one format; `bytes` are those of the packed weights."""

    format: str
    k: int
    n: int
    rows: int
    bytes: int
    seconds: Spread

    @property
    def gmacs(self) -> float:
        """Multiply-adds per nanosecond, by the median."""
        return self.rows * self.k * self.n / self.seconds.median / 1e9

    @property
    def gigabytes(self) -> float:
        """Weight bytes per nanosecond, by the median."""
        return self.bytes / self.seconds.median / 1e9


class KernelsReport(msgspec.Struct, frozen=True, kw_only=True):
    """`read_gb_s` is the fastest that plain readers of `cold_bytes` of memory got, in this run."""

    machine: Machine
    isa: str
    threads: int
    cold_bytes: int
    read_gb_s: Spread
    products: list[Product]


class KernelsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`cold_bytes` of weights and of memory are read before the same bytes come again; take several times the caches."""

    threads: int
    repeats: int
    cold_bytes: int = 256 * MEGABYTE


Shape = tuple[int, int]


class Ring:
    """Weights of one shape, more than the caches hold, and the program that multiplies by all of them."""

    def __init__(self, native: ModuleType, pool: _native.ThreadPool, name: str, shape: Shape, sizes: tuple[int, int]) -> None:
        max_rows, cold_bytes = sizes
        self.k, self.n = shape
        weights = [_weight(native, pool, name, shape)]
        weights += [_weight(native, pool, name, shape) for _ in range(cold_bytes // weights[0].size_bytes)]
        self.bytes, self.count = weights[0].size_bytes, len(weights)
        pages = max_rows // native.PAGE_TOKENS + 1
        kv = native.KvPool(1, 1, 64, pages, "f16")
        self._program = native.Program(pool, kv, 1, max_rows, 2, max_rows, 1)
        source = self._program.buffer(self.k)
        activations, out = self._program.activations(self.k), self._program.buffer(self.n)
        self._program.quantise(source, activations)
        for weight in weights:
            self._program.linear([weight], activations, out)
        self._program.cut_rows(0)  # one product after the other over all rows, or each piece would read the whole ring
        self._program.finish()
        self._native = native

    def seconds(self, rows: int) -> float:
        """How long one product takes."""
        locations = np.arange(rows, dtype=np.int32)
        step = self._native.Step([], [(0, 0, locations)], None, np.array([[0, 0, rows, 0]], dtype=np.int32))
        began_s = time.perf_counter()
        self._program.run(step)
        return (time.perf_counter() - began_s) / self.count


def measure_kernels(
    native: ModuleType, formats: Sequence[str], shapes: Sequence[Shape], rows: Sequence[int], options: KernelsOptions
) -> KernelsReport:
    """Measure every combination; a shape that a format's blocks do not fit is left out."""
    pool = native.ThreadPool(options.threads)
    reads: list[float] = []
    products = []
    for name in formats:
        for shape in shapes:
            if shape[0] % _type(name).block_size == 0:
                products += _measure_shape(native, pool, (name, shape, rows), options, reads)
    isa, cold = native.isa(), options.cold_bytes
    return KernelsReport(
        machine=machine(), isa=isa, threads=options.threads, cold_bytes=cold, read_gb_s=spread(reads), products=products
    )


def _measure_shape(
    native: ModuleType,
    pool: _native.ThreadPool,
    what: tuple[str, Shape, Sequence[int]],
    options: KernelsOptions,
    reads: list[float],
) -> list[Product]:
    name, shape, rows = what
    ring = Ring(native, pool, name, shape, (max(rows), options.cold_bytes))
    memory = np.ones(options.cold_bytes // 8, dtype=np.int64)

    def product(count: int) -> Callable[[], dict[str, float]]:
        return lambda: {"seconds": ring.seconds(count)}

    cases = {str(count): product(count) for count in rows}
    found = alternate({READER: lambda: {"gb_s": read_bandwidth(memory, options.threads)}, **cases}, options.repeats)
    reads += found[READER]["gb_s"]
    return [
        Product(format=name, k=ring.k, n=ring.n, rows=count, bytes=ring.bytes, seconds=spread(found[str(count)]["seconds"]))
        for count in rows
    ]


def read_bandwidth(memory: np.ndarray[tuple[int, ...], np.dtype[np.int64]], threads: int) -> float:
    """GB/s at which `threads` threads read the array, by the fastest of a few reductions."""
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for reader, kind in ((np.sum, np.int64), (np.max, np.int32), (np.max, np.float32)):
            parts = np.array_split(memory.view(kind), threads)
            list(pool.map(reader, [part[:1] for part in parts]))  # the threads exist before the clock starts
            began_s = time.perf_counter()
            list(pool.map(reader, parts))
            best = max(best, memory.nbytes / (time.perf_counter() - began_s) / 1e9)
    return best


def _type(name: str) -> GgmlType:
    for kind in GGML_TYPES.values():
        if kind.name.lower() == name:
            return kind
    raise ConfigError(f"{name!r} is no storage type of ggml; take one such as q4_1, q4_k, q6_k, q8_0, f16", param="formats")


def _weight(native: ModuleType, pool: _native.ThreadPool, name: str, shape: Shape) -> _native.Weight:
    """Packed weights of arbitrary bytes; speed does not depend on them, except where a float is no number."""
    k, n = shape
    raw = np.resize(np.arange(27, dtype=np.uint8), n * _type(name).row_bytes(k))
    try:
        weight: _native.Weight = native.Weight.pack(pool, name, raw, n, k)
    except native.NativeError as error:
        raise ConfigError(f"no kernels for {name} at {k}x{n}: {error}; leave it out", param="formats") from None
    return weight


def kernels_tables(report: KernelsReport) -> list[Table]:
    """The report for people."""
    read = report.read_gb_s.median
    rows = [
        (
            f"{product.format} {product.k}x{product.n}",
            str(product.rows),
            number(product.gmacs),
            number(product.gigabytes),
            f"{product.gigabytes / read:.0%}",
        )
        for product in report.products
    ]
    title = f"{report.isa}, {report.threads} threads, reads {number(read)} GB/s"
    return [grid((title, "rows", "GMAC/s", "GB/s", "of reading"), rows)]
