"""What makes servers of language models take orders from strangers, and is therefore not in the package at all."""

from __future__ import annotations

import ast

import source_tree

CALLS = {
    "eval": "code from a text",
    "exec": "code from a text",
    "__import__": "code by name",
    "ast.literal_eval": "deep nesting ends the interpreter; JSON is read instead",
    "torch.load": "a pickle",
    "torch.hub.load": "code from elsewhere",
    "np.load": "a pickle, maybe",
    "numpy.load": "a pickle, maybe",
    "yaml.load": "objects by name",
    "yaml.unsafe_load": "objects by name",
    "os.system": "a shell",
    "hash": "not the same in two processes, and made to collide by whoever knows it",
}
IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FETCHING = {"requests", "aiohttp", "httpx", "httpx2", "urllib.request", "http.client", "ftplib"}
"""What opens connections to elsewhere: nothing that answers requests has it. What it takes from the hub is in `weights.hub`."""
CLIENTS = {"bench", "lang", "testing"}


def test_no_text_becomes_code() -> None:
    found = [
        f"{module.name}:{node.lineno} {ast.unparse(node.func)}: {CALLS[ast.unparse(node.func)]}"
        for module in source_tree.modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS
    ]
    assert found == []


def test_nothing_is_pickled() -> None:
    assert [f"{m.name}: {target}" for m, target in imported() if target.split(".")[0] in IMPORTS] == []
    for module in source_tree.modules():
        assert "allow_pickle=True" not in ast.unparse(module.tree) and "shell=True" not in ast.unparse(module.tree), module.name


def test_nothing_that_answers_requests_fetches_anything() -> None:
    found = [f"{m.name}: {target}" for m, target in imported() if target in FETCHING and m.area not in CLIENTS]
    assert found == []


def test_one_place_makes_templates() -> None:
    """Jinja is used by the sandbox alone, with all its limits."""
    users = {m.name for m, target in imported() if target.split(".")[0] == "jinja2"}
    assert users and all(name.startswith("sapwood.tokenizer.chat_") for name in users), users


def test_keys_are_compared_in_constant_time() -> None:
    [module] = [module for module in source_tree.modules() if module.name == "sapwood.server.keys"]
    functions = {node.name: ast.unparse(node) for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)}
    assert "hmac.compare_digest" in functions["_is_one_of"] and "any([" not in functions["_is_one_of"]
    users = [m.name for m in source_tree.modules() if "compare_digest" in ast.unparse(m.tree)]
    assert users == ["sapwood.server.keys"]


def imported() -> list[tuple[source_tree.Module, str]]:
    """Every module with every module that it imports."""
    found = []
    for module in source_tree.modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                found += [(module, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.append((module, node.module))
    return found
