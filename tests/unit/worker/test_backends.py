"""The choice of the engine: native where it can run, the reference otherwise, and never another than what was asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sapwood.config.raw import from_mapping
from sapwood.config.resolve import HostFacts, resolve
from sapwood.config.sections import EngineSection
from sapwood.core.model_config import ModelConfig
from sapwood.device import create_device
from sapwood.distributed.group import SoloGroup
from sapwood.errors import ConfigError
from sapwood.worker import backends
from sapwood.worker.backends import choose_backend

CPU = create_device("cpu")


def section(**options: Any) -> EngineSection:
    raw = from_mapping({"model_path": "m", "device": "cpu", **options}, "test")
    return resolve(raw, HostFacts(num_cores=2, has_cuda=False)).engine


def _knows_some_isa(name: str) -> None:
    if name not in ("auto", "avx2"):
        raise RuntimeError(f"kernels '{name}' are not supported by this processor")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the native module were there, whether it is or not."""
    module = ModuleType("native")
    module._native = SimpleNamespace(isa=lambda: "some-isa", select_isa=_knows_some_isa, NativeError=RuntimeError)  # type: ignore[attr-defined]
    monkeypatch.setattr(backends, "_native_module", lambda: module)


@pytest.mark.usefixtures("built")
def test_native_is_the_automatic_choice_on_a_cpu() -> None:
    backend, reason = choose_backend(section(), CPU, SoloGroup(), 1024)
    assert backend.name == "native"
    assert "some-isa" in reason


OBSTACLES = [
    ({"page_size": 8}, "--page-size"),
    ({"dtype": "bfloat16"}, "--dtype"),
    ({"kv_cache_dtype": "bfloat16"}, "--kv-cache-dtype"),
]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("options", "name"), OBSTACLES)
def test_what_native_cannot_do_goes_to_the_reference_or_is_an_error(options: dict[str, Any], name: str) -> None:
    backend, reason = choose_backend(section(**options), CPU, SoloGroup(), 1024)
    assert backend.name == "reference"
    assert name in reason
    with pytest.raises(ConfigError, match=name):
        choose_backend(section(**options, kernel_backend="native"), CPU, SoloGroup(), 1024)


@pytest.mark.usefixtures("built")
def test_several_ranks_run_on_the_reference() -> None:
    group = SoloGroup()
    group.size = 2
    backend, reason = choose_backend(dataclasses.replace(section(), tp_size=2), CPU, group, 1024)
    assert (backend.name, "--tp-size" in reason) == ("reference", True)


def test_without_the_module_the_reference_runs_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_native_module", lambda: None)
    backend, reason = choose_backend(section(), CPU, SoloGroup(), 1024)
    assert backend.name == "reference"
    assert "compiler" in reason
    with pytest.raises(ConfigError, match="compiler"):
        choose_backend(section(kernel_backend="native"), CPU, SoloGroup(), 1024)


@pytest.mark.usefixtures("built")
def test_the_reference_can_be_asked_for() -> None:
    backend, reason = choose_backend(section(kernel_backend="reference"), CPU, SoloGroup(), 1024)
    assert (backend.name, reason) == ("reference", "--kernel-backend")


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("only", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}])
@pytest.mark.parametrize("options", [{"kernel_backend": "reference"}, {"page_size": 8}])
def test_the_reference_does_not_quantise(options: dict[str, Any], only: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="int8 needs native kernels") as caught:
        choose_backend(section(**only, **options), CPU, SoloGroup(), 1024)
    assert caught.value.param == next(iter(only))


@pytest.mark.usefixtures("built")
def test_eight_bit_pages_take_little_more_than_half() -> None:
    stored = SimpleNamespace(file=None, nbytes=9999)
    config = SimpleNamespace(num_kv_heads=2, num_layers=2, head_dim=64)
    found = {}
    for kind in ("float32", "auto", "int8"):
        backend, _ = choose_backend(section(kv_cache_dtype=kind), CPU, SoloGroup(), 1024)
        taken = backend.footprint(stored)  # type: ignore[arg-type]
        found[kind] = ModelConfig.kv_bytes_per_token(config, taken.kv_element_bytes, 1, taken.kv_scale_dims)  # type: ignore[arg-type]
    assert found == {"float32": 2 * 4 * 64 * 4, "auto": 2 * 4 * 64 * 2, "int8": 2 * 4 * (64 + 4)}  # K and V of 4 heads in all


@pytest.mark.usefixtures("built")
def test_quantised_files_are_not_quantised_again() -> None:
    backend, _ = choose_backend(section(quantization="int4"), CPU, SoloGroup(), 1024)
    gguf = SimpleNamespace(file=Path("model.gguf"))
    with pytest.raises(ConfigError, match=r"model\.gguf is a GGUF file"):
        backend.footprint(gguf)  # type: ignore[arg-type]


@pytest.mark.usefixtures("built")
def test_the_memory_plan_knows_what_quantised_weights_take() -> None:
    shapes = {"model.embed_tokens.weight": (10, 64), "model.layers.0.mlp.up_proj.weight": (10, 33), "model.norm.weight": (64,)}
    stored = SimpleNamespace(file=None, nbytes=9999, names=lambda: list(shapes), shape=shapes.__getitem__)
    taken = {}
    for kind in ("none", "int8", "int4"):
        backend, _ = choose_backend(section(quantization=kind), CPU, SoloGroup(), 1024)
        taken[kind] = backend.footprint(stored).weight_bytes  # type: ignore[arg-type]
    assert taken == {"none": 9999, "int8": 680 + 680 + 256, "int4": 680 + 400 + 256}


@pytest.mark.usefixtures("built")
def test_an_instruction_set_that_the_processor_lacks_is_refused() -> None:
    choose_backend(section(cpu_isa="avx2"), CPU, SoloGroup(), 1024)
    with pytest.raises(ConfigError, match="--cpu-isa vnni: .*not supported by this processor") as raised:
        choose_backend(section(cpu_isa="vnni"), CPU, SoloGroup(), 1024)
    assert raised.value.param == "cpu_isa"
