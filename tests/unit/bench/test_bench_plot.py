"""Pictures of a load: what is in them, and what is said when there can be none."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from sapwood.bench.plot import NUM_INTERVALS, check_plot, plot_serve, tokens_per_second
from sapwood.bench.serve import Answered, observe, summarise
from sapwood.errors import ConfigError

SERIES = ("ttft", "itl", "e2e", "throughput")
FIRST_BYTES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def answers(count: int) -> list[Answered]:
    """Each has a first token after 0.5 s and three more, 0.1 s apart."""
    return [Answered(i, [i + 0.5 + 0.1 * j for j in range(4)], i + 0.8, "abcd", 7, 4) for i in range(count)]


def draw(given: list[Answered], path: Path) -> None:
    plot_serve(summarise("by hand", given, 10.0), observe(given), str(path))


def num_points(svg: Path) -> dict[str, int]:
    """Points of the paths of each series."""
    groups = {group.get("id"): group for group in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}g")}
    paths = {name: groups[name].find(".//{*}path") for name in SERIES if name in groups}
    return {name: sum(letter in "ML" for letter in path.get("d", "")) for name, path in paths.items() if path is not None}


@pytest.mark.parametrize("kind", FIRST_BYTES)
def test_pictures_of_each_kind(tmp_path: Path, kind: str) -> None:
    draw(answers(9), tmp_path / f"load.{kind}")
    assert (tmp_path / f"load.{kind}").read_bytes().startswith(FIRST_BYTES[kind])


def test_the_series_are_in_the_picture(tmp_path: Path) -> None:
    few, many = tmp_path / "few.svg", tmp_path / "many.svg"
    draw([*answers(3), Answered(1.0, error="refused")], few)
    draw([Answered(0.0, [0.1 * i + 0.01 * i * i], 1.0 + i, "a", 1, 1) for i in range(1, 8)], many)
    assert set(num_points(few)) == set(SERIES) and set(num_points(many)) == {"ttft", "e2e", "throughput"}
    assert num_points(many)["ttft"] > num_points(few)["ttft"] and num_points(many)["e2e"] > num_points(few)["e2e"]
    text = few.read_text()
    assert all(
        word in text for word in ("time to first token", "p90 500.00 ms", "inter-token", "p50 100.00 ms", "by hand: 4 requests")
    )
    assert "mean 1.2" in text, "12 tokens in 10 s"


def test_without_answers(tmp_path: Path) -> None:
    draw([Answered(0.0, error="refused")], tmp_path / "none.svg")
    assert set(num_points(tmp_path / "none.svg")) == {"throughput"}


def test_rates_by_hand() -> None:
    rates, borders = tokens_per_second([(0.05, 2.0), (0.15, 1.0), (5.95, 3.0)], 6.0)
    assert len(rates) == NUM_INTERVALS and rates[:3].tolist() == pytest.approx([20.0, 10.0, 0.0])
    assert rates[-1] == pytest.approx(30.0) and (borders[0], borders[-1]) == (0.0, 6.0)
    assert sum(rates) * 6.0 / NUM_INTERVALS == pytest.approx(6.0)


def test_refused_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_plot(str(tmp_path / "load.SVG"))
    with pytest.raises(ConfigError, match=r"ends in .png, .svg, .pdf, got 'load.gif'"):
        check_plot("load.gif")
    with pytest.raises(ConfigError, match="no folder"):
        check_plot(str(tmp_path / "missing" / "load.png"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'sapwood\[plot\]'"):
        check_plot("load.png")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        draw(answers(2), tmp_path / "folder.png")
