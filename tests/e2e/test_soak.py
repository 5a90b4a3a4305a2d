"""The short form of the soak: nobody fails, everything comes back, no descriptor is lost, the canary sings the same song.

`scripts/soak` is the long form, which also looks at memory and latency (a few seconds say nothing about either).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import soak
from serving import serving, wait_until

SECONDS = 120.0 if os.environ.get("SAPWOOD_LONG_TESTS") else 6.0


def test_a_mixed_load_with_deserters_on_a_tiny_pool(tmp_path: Path) -> None:
    with serving(tmp_path, "null", *soak.options(tmp_path)) as server:
        canary = server.generate("the canary sings", max_new_tokens=50)
        seen = asyncio.run(soak.soak(server, SECONDS))
        assert seen.failures == []
        assert seen.num_left > 0 and len(seen.latencies_s) > 20
        wait_until(lambda: soak.is_lawful(server), 5, "everything to be back")
        assert seen.fd_growth <= 2 * soak.NUM_CLIENTS  # connections of clients that left, not closed yet
        wait_until(lambda: soak.measure(server, 0).num_fds <= seen.usage[0].num_fds, 10, "the connections to be closed")
        again = server.generate("the canary sings", max_new_tokens=50)
        assert (again["text"], again["output_ids"]) == (canary["text"], canary["output_ids"])
