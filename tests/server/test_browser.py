"""The chat page in a real browser: it streams, stops, counts, remembers, and fits a phone; pictures are kept.

Needs Debian's `chromium` (or SAPWOOD_CHROMIUM) and the `playwright` package; SAPWOOD_PICTURES says where pictures go.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood.testing.scripted_server import ScriptedServer

CHROMIUM = os.environ.get("SAPWOOD_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
playwright_api = pytest.importorskip("playwright.sync_api", reason="needs the playwright package")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the chromium browser; install it, or set SAPWOOD_CHROMIUM")
PICTURES = Path(os.environ.get("SAPWOOD_PICTURES") or Path(__file__).parents[2] / "build/pictures")
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
ANSWER = "An oak grows slowly.\n\nA birch grows fast — and a pine stays green: 🌲"


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


class Visit:
    """One visitor's page, with everything that it asked for and complained about."""

    def __init__(self, browser: Any, server: ScriptedServer, **options: Any) -> None:
        server.script.reset()
        server.script.default = ANSWER
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        self.page.goto(server.url + "/")

    def send(self, text: str) -> None:
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")

    def say(self, text: str) -> str:
        """Send, wait for the end, return the answer."""
        self.send(text)
        self.page.wait_for_selector("#send:visible")
        return str(self.page.inner_text("article.assistant:last-of-type > :first-child"))

    def wait_for_text(self, num_chars: int) -> None:
        """Until so much of the answer is there (the page's policy forbids the scripts with which Playwright would poll)."""
        for _ in range(500):
            answers = self.page.locator("article.assistant > :first-child")
            if answers.count() and len(answers.last.inner_text()) > num_chars:
                return
            self.page.wait_for_timeout(10)
        raise AssertionError("the answer does not grow")

    def slow_down(self, bytes_per_s: int) -> None:
        """Let no more than this reach the page."""
        conditions = {"offline": False, "latency": 0, "downloadThroughput": bytes_per_s, "uploadThroughput": -1}
        self.context.new_cdp_session(self.page).send("Network.emulateNetworkConditions", conditions)

    def note(self) -> str:
        return str(self.page.inner_text("article.assistant:last-of-type small"))

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png")

    def fits(self) -> bool:
        """Whether nothing sticks out sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


@pytest.fixture
def visit(browser: Any, server: ScriptedServer) -> Iterator[Visit]:
    visitor = Visit(browser, server, viewport=DESKTOP)
    yield visitor
    visitor.context.close()
    assert visitor.complaints == []
    assert all(url.startswith(server.url) for url in visitor.asked), visitor.asked


def test_a_conversation(visit: Visit, server: ScriptedServer) -> None:
    assert visit.say("Which tree?") == ANSWER
    assert f"{len(ANSWER.encode()) + 1} tokens" in visit.note() and "tokens/s" in visit.note()
    visit.say("And which grows fastest of all?")
    assert "Which tree?" in server.script.prompts[1] and ANSWER in server.script.prompts[1]
    cached = int(visit.note().split("of which ")[1].split()[0])
    assert cached > 20
    visit.picture("chat-desktop")
    visit.page.reload()
    visit.page.wait_for_selector("#model:text-is('null')")  # it is asked for when the page has been loaded
    assert visit.page.locator("article").count() == 4
    visit.page.click("#clear")
    assert visit.page.locator("article").count() == 0
    visit.page.reload()
    assert visit.page.locator("article").count() == 0


def test_it_streams_and_stops(visit: Visit, server: ScriptedServer) -> None:
    server.script.default = "many words " * 3000
    visit.slow_down(50_000)  # so that the answer is on its way for a minute, however fast the machine is
    visit.send("Go on and on")
    visit.wait_for_text(200)
    assert visit.page.evaluate("['stop', 'send'].map((id) => document.getElementById(id).hidden)") == [False, True]
    visit.page.click("#stop")
    visit.page.wait_for_selector("#send:visible")
    text = visit.page.inner_text("article.assistant > :first-child")
    assert 200 < len(text) < 20_000 and "stopped" in visit.note()
    server.script.default = "Yes."
    assert visit.say("Still there?") == "Yes."


def test_settings_are_used_and_kept(visit: Visit, server: ScriptedServer) -> None:
    visit.page.click("summary")
    visit.page.fill("#system", "Speak of trees only.")
    visit.page.fill("#max_tokens", "7")
    visit.page.fill("#temperature", "0")
    visit.picture("settings-desktop")
    assert visit.say("Hello") == ANSWER[:7]
    assert "Speak of trees only." in server.script.prompts[0]
    visit.page.reload()
    assert visit.page.input_value("#max_tokens") == "7" and visit.page.input_value("#system") == "Speak of trees only."


def test_an_error_is_shown_and_text_stays_text(visit: Visit, server: ScriptedServer) -> None:
    server.script.default = "<img src=x onerror=alert(1)><b>bold</b>"
    assert visit.say("<i>hi</i>") == server.script.default
    assert visit.page.locator("article img, article b, article i").count() == 0
    visit.page.click("summary")
    visit.page.fill("#temperature", "-1")
    visit.send("This fails")
    visit.page.wait_for_selector("article.failed")
    assert "temperature" in visit.page.inner_text("article.failed")
    visit.complaints.clear()  # the browser logs the 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(browser: Any, server: ScriptedServer, scheme: str) -> None:
    visit = Visit(browser, server, viewport=PHONE, is_mobile=True, has_touch=True, device_scale_factor=2, color_scheme=scheme)
    server.script.default = ANSWER + "\n\n" + "x" * 300
    visit.say("Tell me about trees, please, and about a_very_long_word_" + "y" * 120)
    assert visit.fits() and visit.page.is_visible("#prompt") and visit.page.is_visible("#send")
    box = visit.page.locator("#send").bounding_box()
    assert box["height"] >= 40 and box["x"] + box["width"] <= PHONE["width"] and box["y"] + box["height"] <= PHONE["height"]
    ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 380) is (scheme == "light")
    visit.page.click("summary")
    assert visit.fits()
    visit.picture(f"chat-phone-{scheme}")
    visit.context.close()
    assert visit.complaints == []
