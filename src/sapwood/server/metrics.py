"""The scrape route; the numbers themselves are `observability.metrics`. Exists only when metrics are enabled."""

from __future__ import annotations

from fastapi import APIRouter, Response

from sapwood.observability.metrics import CONTENT_TYPE
from sapwood.server.context import ServerContext


def metrics_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["health"])

    async def metrics() -> Response:
        await context.frontend.refresh_stats()
        return Response(context.frontend.metrics.render(), headers={"content-type": CONTENT_TYPE})

    router.add_api_route("/metrics", metrics, methods=["GET"], summary="Metrics as Prometheus text")
    return router
