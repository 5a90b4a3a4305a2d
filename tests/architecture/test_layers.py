"""An import may only go down: the graph of the package, from one table, and the parts that must run without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import source_tree

# Lowest first. An area may import from the rows above its own in this list, and from itself; nothing else.
ROWS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("core", "registry", "config", "observability"),
    ("messages",),
    ("device",),
    ("distributed", "kernels"),
    ("layers", "attention", "quantization"),
    ("kvcache", "weights", "grammar"),
    ("models",),
    ("scheduler", "engine"),
    ("tokenizer",),
    ("worker",),
    ("detokenizer", "parsing", "webui"),
    ("server",),
    ("offline",),
    ("pump", "upkeep"),
    ("llm",),
    ("library",),
    ("lang",),
    ("sapwood",),
    ("simulate",),
    ("bench", "testing"),
    ("cli",),
)
RANK = {area: rank for rank, row in enumerate(ROWS) for area in row}

# These never import torch, neither themselves nor through what they import.
TORCH_FREE = (
    "errors", "core", "registry", "config", "observability", "messages", "scheduler", "tokenizer", "detokenizer", "server",
    "parsing", "grammar",
    "weights.catalog", "kvcache.pages", "kvcache.prefix", "kvcache.radix", "kvcache.chunk", "kvcache.hashed", "kvcache.policy",
    "kvcache.audit", "kvcache.hierarchical", "kvcache.tiers", "kvcache.storage", "kvcache.storage_file",
    "cli.main", "cli.serve", "cli.pull", "cli.models", "cli.tokenize", "cli.doctor", "cli.version",
    "cli.replay", "cli.simulate", "cli.bench", "cli.bench_serve", "bench.serve", "simulate", "lang", "testing",
)  # fmt: skip


def test_every_area_has_a_row() -> None:
    assert {module.area for module in source_tree.modules()} <= set(RANK), "a new package needs a row in ROWS"


def test_imports_go_down() -> None:
    wrong = []
    for module in source_tree.modules():
        for imported in source_tree.imports(module):
            target = imported.target.split(".")
            area = target[1] if len(target) > 1 else "sapwood"
            if target[0] == "sapwood" and area != module.area and RANK[area] >= RANK[module.area]:
                wrong.append(f"{module.name}:{imported.line} imports {imported.target}")
    assert wrong == []


def test_modules_import_each_other_without_cycles() -> None:
    graph = {module.name: set[str]() for module in source_tree.modules()}
    for module in source_tree.modules():
        known = {i.target for i in source_tree.imports(module) if not i.typing_only and i.function is None}
        graph[module.name] = {target for target in known if target in graph and target != module.name}
    while graph:
        leaves = {name for name, targets in graph.items() if not targets & graph.keys()}
        assert leaves, f"these import each other in a circle: {sorted(graph)}"
        graph = {name: targets for name, targets in graph.items() if name not in leaves}


def is_torch_free(name: str) -> bool:
    return any(name == f"sapwood.{part}" or name.startswith(f"sapwood.{part}.") for part in TORCH_FREE)


def test_torch_free_modules_name_no_torch() -> None:
    wrong = []
    for module in source_tree.modules():
        if is_torch_free(module.name):
            wrong += [f"{module.name}:{i.line}" for i in source_tree.imports(module) if i.target.split(".")[0] == "torch"]
    assert wrong == []


def test_torch_free_modules_load_no_torch() -> None:
    names = [m.name for m in source_tree.modules() if is_torch_free(m.name) and not m.name.endswith("__main__")]
    assert len(names) > 10
    script = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
"""
    done = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("part", TORCH_FREE)
def test_torch_free_names_exist(part: str) -> None:
    assert f"sapwood.{part}" in source_tree.module_names(), "a renamed module must be renamed in TORCH_FREE too"
