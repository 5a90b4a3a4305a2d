"""Schemathesis over the whole description of a live server: what it may say to any call, and that it is the same afterwards.

Shared by a test (few calls, always the same) and by `scripts/fuzz_api` (as many as fit into some minutes, at random).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

HANG_S = 20.0
CANARY = {"text": "the canary", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
SWITCHES = {
    "/pause_generation": "/continue_generation",
    "/release_memory_occupation": "/resume_memory_occupation",
    "/start_profile": "/stop_profile",
}
"""What changes the server for everyone, and what undoes it."""


class Fuzzer:
    """Asks one server everything, and the canary in between."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._model = self._session.get(f"{url}/v1/models").json()["data"][0]["id"]
        self.operations = [found.ok() for found in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations()]
        self.num_calls: dict[int, int] = {}
        self.failures: list[str] = []
        self._canary = self._ask_canary()

    def batch(self, operation: Any, kind: GenerationMode, num_calls: int, number: int) -> None:
        """Up to `num_calls` calls of one operation; what is wrong is noted."""

        @seed(number)
        @settings(
            max_examples=num_calls,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=kind))
        def call(case: Any) -> None:
            if kind is GenerationMode.POSITIVE and isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = self._model  # no further than a 404 otherwise
            self._call(case)

        with contextlib.suppress(Unsatisfiable):  # where nothing is asked for, nothing can be wrong
            call()
        self._after_batch(operation)

    def batches(self) -> Iterator[tuple[Any, GenerationMode]]:
        """Every operation, with calls as the description has them; then with calls that it forbids, where there are any."""
        for operation in self.operations:
            yield operation, GenerationMode.POSITIVE
            if operation.body or operation.query:
                yield operation, GenerationMode.NEGATIVE

    def _call(self, case: Any) -> None:
        where = f"{case.method} {case.formatted_path}"
        try:
            response = case.call(session=self._session, timeout=HANG_S)
        except requests.RequestException as error:
            self.failures.append(f"{where} {case.body!r:.300}: {error!r:.300}")
            return
        status = response.status_code
        self.num_calls[status] = self.num_calls.get(status, 0) + 1
        is_asked_for = status == 503 and isinstance(case.body, dict) and case.body.get("queue_timeout_s") is not None
        is_fine = status < 400 or ((status < 500 or is_asked_for) and response.json().get("error"))
        if not is_fine or "engine_failed" in response.text:
            self.failures.append(f"{where} {case.query!r:.200} {case.body!r:.600}: {status} {response.text:.300}")

    def _after_batch(self, operation: Any) -> None:
        """Undo what the operation may have asked for, then see whether all is as before."""
        if operation.path in SWITCHES:
            self._session.post(self._url + SWITCHES[operation.path], timeout=HANG_S)
        if (said := self._ask_canary()) != self._canary:
            self.failures.append(f"after {operation.method} {operation.path} the canary says {said!r}, not {self._canary!r}")

    def _ask_canary(self) -> str:
        try:
            answer = self._session.post(f"{self._url}/generate", json=CANARY, timeout=HANG_S)
            return str(answer.json().get("text", answer.text))
        except requests.RequestException as error:
            return repr(error)
