"""What all tests share: random examples are the same in every run, unless a long run asks for new ones."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("SAPWOOD_LONG_TESTS"):
    settings.load_profile("repeatable")
