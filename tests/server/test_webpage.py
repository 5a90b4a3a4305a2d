"""The chat page: its files are served without a key, and ask for nothing outside this server."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import resources

import pytest
from serverkit import ask, make_house

from sapwood.server.webpage import FILES


@pytest.mark.parametrize("path", FILES)
def test_the_files_need_no_key_and_are_confined(path: str) -> None:
    response = ask(make_house(api_key="k"), "GET", path)
    assert response.status_code == 200 and response.headers["content-type"].startswith(FILES[path][1])
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"https?://|//[a-z]+\.", response.text) and "innerHTML" not in response.text


def test_what_the_page_calls_needs_the_key() -> None:
    house = make_house(api_key="k")
    assert ask(house, "GET", "/v1/models").status_code == 401
    assert ask(house, "POST", "/v1/chat/completions", json={}).status_code == 401
    assert ask(house, "GET", "/webui/../server/app.py").status_code == 401
    assert ask(make_house(), "HEAD", "/").status_code == 200


def test_every_element_that_the_script_uses_is_on_the_page() -> None:
    page, script = (resources.files("sapwood.webui").joinpath(name).read_text("utf-8") for name in ("index.html", "chat.js"))
    used = set(re.findall(r'byId\("(\w+)"\)', script)) | set(re.findall(r'"(\w+)"', script.split("SETTINGS = ")[1].split(";")[0]))
    assert used and used <= set(re.findall(r'id="(\w+)"', page))
    linked = set(re.findall(r'(?:src|href)="(webui/[^"]+)"', page))
    assert {f"/{name}" for name in linked} | {"/"} == set(FILES)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to parse the script")
def test_the_script_parses() -> None:
    with resources.as_file(resources.files("sapwood.webui") / "chat.js") as path:
        assert subprocess.run(["node", "--check", str(path)], capture_output=True).returncode == 0
