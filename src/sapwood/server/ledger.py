"""What is told about a request of the registry when it has ended: its facts, made from its record.

Knows records and sinks; writes nothing itself. Invariant: texts are made only for a sink that wants them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from sapwood.config.sections import ServerSection
from sapwood.messages.types import Finish
from sapwood.observability.requests import NoSink, RequestFacts, RequestLog, RequestSink, Sinks
from sapwood.observability.tracing import open_spans
from sapwood.server.record import RequestRecord


class Ledger:
    """Turns records into facts; `decode` gives a prompt's text. Without arguments it tells nobody."""

    def __init__(
        self,
        sink: RequestSink | None = None,
        model_name: str = "",
        decode: Callable[[Sequence[int]], str] = lambda token_ids: "",
    ) -> None:
        self._sink = sink or NoSink()
        self._is_silent = sink is None
        self._model_name = model_name
        self._decode = decode

    def ended(self, record: RequestRecord, now_s: float) -> None:
        """A request has had its one terminal event; `now_s` is the moment on the clock of its timings."""
        if not self._is_silent:
            self._sink.ended(self._facts(record, record.finish or Finish("error"), now_s))

    def close(self) -> None:
        """Let the sinks write what is left."""
        self._sink.close()

    def _facts(self, record: RequestRecord, finish: Finish, now_s: float) -> RequestFacts:
        timings, wants_texts = record.timings, self._sink.wants_texts
        end_s = now_s - timings.received_s
        return RequestFacts(
            received=time.time() - end_s,
            request_id=record.call.request_id,
            traceparent=record.call.traceparent,
            rid=record.rid,
            model=self._model_name,
            prompt_tokens=record.num_prompt,
            cached_tokens=record.num_cached,
            completion_tokens=len(record.token_ids),
            finish_reason=finish.kind,
            status=finish.status,
            message=finish.message,
            queue_s=record.queue_s,
            first_token_s=timings.first_token_s - timings.received_s if timings.first_token_s else None,
            end_s=end_s,
            retractions=record.num_retractions,
            prompt=self._decode(record.prompt.token_ids) if wants_texts else msgspec.UNSET,
            completion=record.text if wants_texts else msgspec.UNSET,
        )


def open_ledger(settings: ServerSection, decode: Callable[[Sequence[int]], str]) -> Ledger:
    """The ledger with the sinks that were asked for; raises ConfigError when one cannot be opened."""
    sinks: list[RequestSink] = []
    if settings.request_log is not None:
        sinks.append(RequestLog(settings.request_log, settings.request_log_texts))
    if settings.otlp_traces_endpoint is not None:
        sinks.append(open_spans(settings.otlp_traces_endpoint))
    return Ledger(Sinks(sinks) if sinks else None, settings.served_model_name, decode)
