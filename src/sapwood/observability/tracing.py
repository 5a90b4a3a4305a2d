"""OpenTelemetry spans of ended requests, sent to a collector over OTLP/HTTP; needs the extra `otel`.

Owns the provider and its exporting thread (nothing of OpenTelemetry's is made global). Invariant: a collector that is away costs
spans, never time; spans carry counts and times, no texts.
"""

from __future__ import annotations

from typing import Any

from sapwood.errors import ConfigError
from sapwood.observability.requests import RequestFacts

SERVICE = "sapwood"
_NS = 1_000_000_000


class SpanSink:
    """A span for each request, `llm_request`, with a child for its wait, its prompt and its completion. A client's `traceparent`
    makes it part of the client's trace."""

    wants_texts = False

    def __init__(self, provider: Any) -> None:
        """`provider` is a TracerProvider of the SDK; it is shut down by `close`."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)
        self._extract = TraceContextTextMapPropagator().extract
        self._under = set_span_in_context
        self._status, self._error = Status, StatusCode.ERROR

    def ended(self, facts: RequestFacts) -> None:
        """Its spans, all at once: the moments are known."""
        parent = self._extract({"traceparent": facts.traceparent}) if facts.traceparent else None
        span = self._tracer.start_span(
            "llm_request", context=parent, start_time=_moment(facts, 0.0), attributes=_attributes(facts)
        )
        inside = self._under(span)
        for name, begin_s, end_s in _phases(facts):
            child = self._tracer.start_span(name, context=inside, start_time=_moment(facts, begin_s))
            child.end(_moment(facts, end_s))
        if facts.status >= 400:
            span.set_status(self._status(self._error, facts.message))
        span.end(_moment(facts, facts.end_s))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def open_spans(endpoint: str) -> SpanSink:
    """Spans to the collector at this URL; raises ConfigError without the extra."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError("--otlp-traces-endpoint needs OpenTelemetry; install it with: pip install 'sapwood[otel]'") from None
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return SpanSink(provider)


def _attributes(facts: RequestFacts) -> dict[str, Any]:
    """By the names of OpenTelemetry's conventions where there are such."""
    given = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": facts.model,
        "gen_ai.response.id": facts.rid,
        "gen_ai.response.finish_reasons": (facts.finish_reason,),
        "gen_ai.usage.input_tokens": facts.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": facts.cached_tokens,
        "gen_ai.usage.output_tokens": facts.completion_tokens,
        "gen_ai.server.time_to_first_token": facts.first_token_s,
        "sapwood.queue_s": facts.queue_s,
        "sapwood.retractions": facts.retractions,
        "http.request.id": facts.request_id,
    }
    return {name: value for name, value in given.items() if value not in (None, "")}


def _phases(facts: RequestFacts) -> list[tuple[str, float, float]]:
    """What happened one after the other, as far as it came: (name, begin, end)."""
    admitted_s = min(facts.end_s if facts.queue_s is None else facts.queue_s, facts.end_s)
    phases = [("queue", 0.0, admitted_s)]
    if facts.first_token_s is not None:
        phases += [("prefill", min(admitted_s, facts.first_token_s), facts.first_token_s)]
        phases += [("decode", facts.first_token_s, max(facts.first_token_s, facts.end_s))]
    return phases


def _moment(facts: RequestFacts, after_s: float) -> int:
    return int((facts.received + after_s) * _NS)
