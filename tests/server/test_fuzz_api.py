"""Every operation of the description, called as it says and as it forbids: never a 5xx, never a hang, the canary unchanged.

The calls are the same in every run; `scripts/fuzz_api` makes others, against real processes, for as long as it is told to.
"""

from __future__ import annotations

from pathlib import Path

from apifuzz import Fuzzer
from serverkit import real_server, wait_until
from test_null_house import at_rest, null_house

CALLS_PER_BATCH = 2


def test_no_call_that_the_description_allows_or_forbids_breaks_the_server(tmp_path: Path) -> None:
    house = null_house(profiles=tmp_path)
    with real_server(house) as url:
        fuzzer = Fuzzer(url)
        assert len(fuzzer.operations) > 50
        for operation, kind in fuzzer.batches():
            fuzzer.batch(operation, kind, CALLS_PER_BATCH, 6)
        assert fuzzer.failures == []
        assert fuzzer.num_calls[200] > 30 and fuzzer.num_calls[400] > 80
        assert wait_until(lambda: at_rest(house))
