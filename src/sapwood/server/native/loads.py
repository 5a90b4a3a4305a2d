"""`/v1/loads` and `/get_load`: how busy this replica is, for routers and dashboards.

Shows the scheduler's gauges under SGLang's names; asks the worker once per call. Invariant: what was not asked for is not there.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.messages.types import StepStats
from sapwood.server.context import ServerContext
from sapwood.server.sse import json_response

SECTIONS = ("core", "memory", "queues")


def load_routes(context: ServerContext, version: str) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["info"])
    frontend = context.frontend

    async def loads(request: Request) -> Response:
        asked = _asked(request.query_params.get("include", "all"))
        wanted_rank = request.query_params.get("dp_rank", "0")
        if wanted_rank != "0":
            raise InvalidRequest("dp_rank: this server has one replica, number 0", param="dp_rank")
        await frontend.refresh_stats()
        load = _load(frontend.stats, frontend.num_open, asked)
        match request.query_params.get("format", "json"):
            case "json":
                return json_response({"timestamp": time.time(), "version": version, "dp_rank_count": 1, "loads": [load]})
            case "prometheus":
                return Response(_as_prometheus(load), media_type="text/plain; version=0.0.4")
            case _:
                raise InvalidRequest("format must be json or prometheus", param="format")

    async def get_load() -> Response:
        await frontend.refresh_stats()
        stats = frontend.stats
        found = {
            "dp_rank": 0,
            "num_reqs": stats.num_running + stats.num_waiting,
            "num_waiting_reqs": stats.num_waiting,
            "num_tokens": _num_used_tokens(stats),
        }
        return json_response([found])

    router.add_api_route("/v1/loads", loads, methods=["GET"], summary="How busy this server is")
    router.add_api_route("/get_load", get_load, methods=["GET"], summary="The same, in short")
    return router


def _asked(include: str) -> set[str]:
    names = {name.strip() for name in include.split(",")}
    if "all" in names:
        return set(SECTIONS)
    if unknown := names - set(SECTIONS):
        known = ", ".join(("all", *SECTIONS))
        raise InvalidRequest(f"include: {sorted(unknown)[0][:50]!r} is not known; known: {known}", param="include")
    return names


def _num_used_tokens(stats: StepStats) -> int:
    """Tokens of pages that requests hold; what only the prefix cache holds can be taken at any time."""
    return (stats.num_pages - stats.num_free_pages - stats.num_evictable_pages) * stats.page_size


def _load(stats: StepStats, num_open: int, asked: set[str]) -> dict[str, Any]:
    total = stats.num_pages * stats.page_size
    prompt = stats.prompt_tokens_total
    found: dict[str, Any] = {"dp_rank": 0}
    if "core" in asked:
        found |= {
            "num_running_reqs": stats.num_running,
            "num_waiting_reqs": stats.num_waiting,
            "num_total_reqs": stats.num_running + stats.num_waiting,
            "num_open_reqs": num_open,
            "num_used_tokens": _num_used_tokens(stats),
            "max_total_num_tokens": total,
            "token_usage": _num_used_tokens(stats) / total if total else 0.0,
            "cache_hit_rate": stats.cached_tokens_total / prompt if prompt else 0.0,
            "generated_tokens_total": stats.generated_tokens_total,
        }
    if "memory" in asked:
        found["memory"] = {
            "num_free_tokens": stats.num_free_pages * stats.page_size,
            "num_cached_tokens": stats.num_cached_pages * stats.page_size,
            "num_evictable_tokens": stats.num_evictable_pages * stats.page_size,
            "num_host_tokens": stats.num_host_pages * stats.page_size,
        }
    if "queues" in asked:
        found["queues"] = {"waiting": stats.num_waiting, "retracted_total": stats.retractions_total}
    return found


def _as_prometheus(load: dict[str, Any]) -> str:
    lines = []
    for name, value in load.items():
        values = value if isinstance(value, dict) else {"": value}
        for part, number in values.items():
            full = "sapwood:load_" + "_".join(filter(None, (name, part)))
            lines += [f"# TYPE {full} gauge", f'{full}{{dp_rank="0"}} {number}']
    return "\n".join(line for line in lines if "load_dp_rank" not in line) + "\n"
