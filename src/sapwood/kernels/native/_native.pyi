"""Types of the compiled module; written by nanobind's stubgen, arrays abbreviated. The sources are in csrc/bindings/."""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

class NativeError(ValueError):
    pass

PAGE_TOKENS: int = 16

CHUNK_TOKENS: int = 128

PACKED_VERSION: int = 1

def isa() -> str:
    """Name of the instruction set whose kernels run."""

def select_isa(name: str) -> None:
    """auto, or the name of one that this build and this processor have."""

class ThreadPool:
    """Compute threads; the calling thread counts as one of them."""

    def __init__(self, threads: int, pin: bool = True) -> None: ...
    @property
    def threads(self) -> int: ...

class Weight:
    """A packed weight matrix; rows are output columns."""

    @staticmethod
    def pack(pool: ThreadPool, format: str, raw: NDArray[numpy.uint8], rows: int, k: int) -> Weight:
        """
        Packs a GGUF tensor's bytes without loss. ValueError where the size does not fit the format.
        """

    @staticmethod
    def quantise(pool: ThreadPool, format: str, values: NDArray[numpy.float32]) -> Weight:
        """
        Quantises float32 [rows, k] to q8_0 or q4_1 and packs it; k need not be a multiple of 32.
        """

    @staticmethod
    def from_packed(pool: ThreadPool, format: str, packed: NDArray[numpy.uint8], rows: int, k: int) -> Weight:
        """
        A copy of the bytes that `packed` of an equal weight gave. ValueError where the size does not fit.
        """

    @property
    def packed(self) -> NDArray[numpy.uint8]:
        """The packed bytes, a view; their layout is PACKED_VERSION."""

    def checksum(self, pool: ThreadPool) -> int:
        """64 bits over the packed bytes, against accidents."""

    @property
    def rows(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    def dequantise(self, first: int, count: int) -> NDArray[numpy.float32]:
        """Rows [first, first + count) as float32 [count, k]."""

def linear(pool: ThreadPool, weights: Sequence[Weight], x: NDArray[numpy.float32]) -> NDArray[numpy.float32]:
    """float32 [rows, k] -> float32 [rows, sum of the weights' rows]."""

class KvPool:
    """KV pages of all layers; 16 tokens per page."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        pages: int,
        dtype: str = "f16",
        window_layers: Sequence[bool] = ...,
        window_pages: int = 0,
    ) -> None:
        """Layers that `window_layers` flags (none, or one flag each) have `window_pages` pages of their own."""

    @property
    def pages(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    def write_token(self, layer: int, location: int, keys: NDArray[numpy.float32], values: NDArray[numpy.float32]) -> None:
        """Stores float32 [kv_heads, head_dim] keys and values; not while a stream runs."""

    def read_token(self, layer: int, location: int) -> NDArray[numpy.float32]:
        """float32 [2 * kv_heads, head_dim]: keys, then values."""

class HostPages:
    """Pages below a KV pool; steps fill and read them."""

    def __init__(self, kv: KvPool, pages: int, span: int = 1) -> None:
        """Each holds `span` consecutive pages of the pool, of all layers."""

    @property
    def pages(self) -> int: ...
    @property
    def bytes(self) -> NDArray[numpy.uint8]:
        """uint8 [pages, bytes of a page]: a view, to be written too."""

class Steering:
    """Penalties over the completion, biases, and the ids that may not end a short one."""

    def __init__(
        self,
        frequency: float,
        presence: float,
        repetition: float,
        num_prompt: int,
        min_new: int,
        ending_ids: NDArray[numpy.int32],
        bias_ids: NDArray[numpy.int32],
        biases: NDArray[numpy.float32],
    ) -> None: ...

class Reporting:
    """Which log-probabilities a slot reports; prompt_start -1: none of the prompt."""

    def __init__(self, output: bool, prompt_start: int, top_n: int, asked_ids: NDArray[numpy.int32]) -> None: ...

class SlotStart:
    """A request takes a slot; temperature 0 is greedy, top_k 0 is no limit."""

    def __init__(
        self,
        slot: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        sample_index: int,
        steering: Steering,
        reporting: Reporting,
    ) -> None: ...

def sample(
    pool: ThreadPool, logits: NDArray[numpy.float32], starts: Sequence[SlotStart], completions: Sequence[Sequence[int]]
) -> list[int]:
    """One id per row of float32 logits [S, V]; starts[i] and the ids completions[i] belong to row i."""

def random_bits(seed: int, sample_index: int, position: int, purpose: int = 0) -> int:
    """53 bits: the uniform number times 2**53."""

class Masks:
    """What the constrained runs of one step may choose from; the step's sampling waits until they are released."""

    def __init__(self, runs: NDArray[numpy.int32], words: int) -> None: ...
    def release(self, bits: NDArray[numpy.uint32]) -> None:
        """uint32 [runs, words], one bit per id, lowest first."""

class Step:
    """One step, as sapwood.core.plan describes it: integers only."""

    def __init__(
        self,
        tokens: list[tuple[int, int, NDArray[numpy.int32]]],
        locations: list[tuple[int, int, NDArray[numpy.int32]]] | list[tuple[int, int, NDArray[numpy.int32], int]],
        copies: NDArray[numpy.int32] | None,
        runs: NDArray[numpy.int32],
        starts: list[SlotStart] = ...,
        masks: Masks | None = ...,
        saves: NDArray[numpy.int32] | None = None,
        loads: NDArray[numpy.int32] | None = None,
        window_copies: NDArray[numpy.int32] | None = None,
    ) -> None:
        """
        tokens, locations: lists of (slot, position, int32 array), locations with 1 as fourth item where they are window pages';
        copies, window_copies: [C, 2]; runs: [R, 4] of slot, first, count, samples;
        starts: SlotStarts; masks: what the runs that they name may choose from;
        saves: [S, 2] of page, host page; loads: [L, 2] of host page, page; pages as HostPages counts them.
        """

class Rope:
    """Cosines and sines, each [max_len, rotary_dim / 2] flattened."""

    def __init__(self, cosine: NDArray[numpy.float32], sine: NDArray[numpy.float32]) -> None: ...

class Program:
    """A recorded list of operations over static buffers."""

    def __init__(
        self,
        pool: ThreadPool,
        kv: KvPool,
        slots: int,
        max_len: int,
        vocabulary: int,
        max_rows: int,
        max_logit_rows: int,
        host: HostPages | None = None,
    ) -> None: ...
    def buffer(self, width: int, logits: bool = False) -> int: ...
    def activations(self, k: int, logits: bool = False) -> int: ...
    def embed(self, weight: Weight, scale: float, x: int) -> None: ...
    def norm(
        self,
        x: int,
        weight: NDArray[numpy.float32],
        epsilon: float,
        out: int,
        delta: int = -1,
        delta_norm: NDArray[numpy.float32] | None = None,
    ) -> None: ...
    def linear(self, weights: Sequence[Weight], input: int, out: int) -> None: ...
    def bias(self, x: int, bias: NDArray[numpy.float32]) -> None: ...
    def heads(
        self,
        qkv: int,
        layer: int,
        query_heads: int,
        rotary_dim: int,
        rope: Rope,
        epsilon: float = 1e-6,
        bias: NDArray[numpy.float32] | None = None,
        query_norm: NDArray[numpy.float32] | None = None,
        key_norm: NDArray[numpy.float32] | None = None,
        balance: NDArray[numpy.float32] | None = None,
    ) -> None:
        """balance: powers of two, [kv_heads * head_dim], that divide keys and multiply queries."""

    def attention(
        self, qkv: int, out: int, layer: int, query_heads: int, scale: float, soft_cap: float = 0.0, window: int = 0
    ) -> None: ...
    def quantise(self, x: int, out: int) -> None: ...
    def gate(self, x: int, kind: str, out: int) -> None: ...
    def soft_cap(self, x: int, cap: float) -> None: ...
    def sample(self, logits: int) -> None: ...
    def widen_activations(self) -> None:
        """Activations of 16 bits wherever linears would read 8."""
    def cut_rows(self, piece_rows: int) -> None:
        """How many rows a lane takes through a stage at a time; 0: lanes always share operations."""
    def finish(self) -> None: ...
    def run(self, step: Step) -> list[int]:
        """
        Replays on the calling thread; not while a stream runs the same program.
        """

    def set_profiling(self, on: bool) -> None: ...
    def profile(self) -> dict[str, int]:
        """Nanoseconds by operation since profiling was turned on."""

    def rows(self, buffer: int) -> NDArray[numpy.float32]: ...

class StepResult:
    @property
    def sampled(self) -> list[int]: ...
    @property
    def reports(self) -> NDArray[numpy.int32]:
        """int32 [reports, 5]: run, position, whether it was sampled, top_n, asked."""

    @property
    def report_ids(self) -> NDArray[numpy.int32]:
        """int32, flat; of each report: the id at its position, top_n best ids, asked ids."""

    @property
    def report_values(self) -> NDArray[numpy.float32]:
        """float32 log-probabilities of report_ids."""

    @property
    def error(self) -> str: ...
    @property
    def nanoseconds(self) -> int: ...

class ComputeStream:
    """A native thread that replays launched steps in order, without the GIL."""

    def __init__(self, pool: ThreadPool) -> None: ...
    def launch(self, program: Program, step: Step) -> int: ...
    @property
    def completed(self) -> int: ...
    @property
    def event_fd(self) -> int: ...
    def drain(self) -> None:
        """Waits until everything launched has completed."""

    def wait(self, ticket: int) -> StepResult: ...
