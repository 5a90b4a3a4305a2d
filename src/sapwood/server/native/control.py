"""Routes with which operators and training loops steer a running server. They ask for the admin key when one is set.

Turns bodies into orders of `Steering`; does nothing itself. Invariant: weights are read only from the folder that the server was
started with, and only from safetensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.server.auth import admin_check
from sapwood.server.body import Decoder, make_refusals, refuse
from sapwood.server.context import ServerContext
from sapwood.server.failures import Forbidden
from sapwood.server.keys import read_keys
from sapwood.server.sse import json_response
from sapwood.server.steering import model_folder

EVERYTHING = frozenset(("weights", "kv_cache"))
Version = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class PauseFields(msgspec.Struct, kw_only=True):
    """The body of `/pause_generation`: end all requests, freeze them where they are, or let them give their memory back."""

    mode: Literal["abort", "in_place", "retract"] = "abort"


class UpdateWeightsFields(msgspec.Struct, kw_only=True):
    """The body of `/update_weights_from_disk`. `model_path` lies in the server's `--weight-update-folder`."""

    model_path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    load_format: Literal["auto", "safetensors"] | None = None
    abort_all_requests: bool | None = None
    weight_version: Version | None = None
    keep_pause: bool | None = None
    flush_cache: bool | None = None


class MemoryFields(msgspec.Struct, kw_only=True):
    """The body of `/release_memory_occupation` and `/resume_memory_occupation`."""

    tags: list[Literal["weights", "kv_cache", "cuda_graph"]] | None = None


class ProfileFields(msgspec.Struct, kw_only=True):
    """The body of `/start_profile`: how many steps to record, until told to stop when left out."""

    num_steps: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None


UpdateRefusals = make_refusals("UpdateRefusals", ("manifest", "is_async", "torch_empty_cache", "recapture_cuda_graph"))
ProfileRefusals = make_refusals(
    "ProfileRefusals", ("output_dir", "start_step", "profile_by_stage", "with_stack", "record_shapes", "merge_profiles")
)
_pause_fields: Decoder[PauseFields] = Decoder(PauseFields)
_update_fields: Decoder[UpdateWeightsFields] = Decoder(UpdateWeightsFields)
_memory_fields: Decoder[MemoryFields] = Decoder(MemoryFields)
_profile_fields: Decoder[ProfileFields] = Decoder(ProfileFields)
_update_refusals, _profile_refusals = Decoder(UpdateRefusals), Decoder(ProfileRefusals)


def control_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["admin"], dependencies=[Depends(admin_check(read_keys(context.settings)))])
    frontend = context.frontend
    steering = frontend.steering

    async def pause(request: Request) -> Response:
        mode = _pause_fields.decode(await _body(context, request)).mode
        num_aborted = frontend.abort("", "the server was paused") if mode == "abort" else 0
        await steering.pause(retract=mode == "retract")
        return json_response({"message": "Generation paused", "status": "ok", "mode": mode, "num_aborted": num_aborted})

    async def resume(request: Request) -> Response:
        await steering.resume()
        return json_response({"message": "Generation continued", "status": "ok"})

    async def update_weights(request: Request) -> Response:
        fields = read_update(await _body(context, request))
        path = allowed_path(context.settings.weight_update_folder, fields.model_path)
        if fields.abort_all_requests:
            frontend.abort("", "the weights are being changed")
        num_paused = frontend.num_open
        message = await steering.load(path, fields.weight_version, keep_pause=bool(fields.keep_pause))
        return json_response({"success": True, "message": message, "num_paused_requests": num_paused})

    async def release(request: Request) -> Response:
        check_memory_fields(await _body(context, request))
        return json_response({"success": True, "message": await steering.release()})

    async def restore(request: Request) -> Response:
        check_memory_fields(await _body(context, request))
        return json_response({"success": True, "message": await steering.restore()})

    async def start_profile(request: Request) -> Response:
        message = await steering.profile(True, read_num_steps(await _body(context, request)))
        return json_response({"success": True, "message": message})

    async def stop_profile(request: Request) -> Response:
        return json_response({"success": True, "path": await steering.profile(False)})

    for path, route, summary in (
        ("/pause_generation", pause, "Start no more steps"),
        ("/continue_generation", resume, "Start steps again"),
        ("/update_weights_from_disk", update_weights, "Other weights for the same model"),
        ("/release_memory_occupation", release, "Free the memory of weights and KV cache"),
        ("/resume_memory_occupation", restore, "Take that memory again"),
        ("/start_profile", start_profile, "Begin to record steps"),
        ("/stop_profile", stop_profile, "Write the recorded steps to a file"),
    ):
        router.add_api_route(path, route, methods=["POST"], summary=summary)
    return router


def allowed_path(folder: str | None, wanted: str) -> Path:
    """The model that `wanted` names inside `folder`; raises Forbidden for every other place, whatever lies there."""
    if folder is None:
        raise Forbidden("this server's weights may not be changed; start it with --weight-update-folder", param="model_path")
    root = Path(folder).resolve()
    if "\0" in wanted:
        raise Forbidden("model_path must lie in the server's --weight-update-folder", param="model_path")
    path = (root / wanted).resolve()
    if path == root or not path.is_relative_to(root):
        raise Forbidden("model_path must lie in the server's --weight-update-folder", param="model_path")
    return model_folder(path)


async def _body(context: ServerContext, request: Request) -> bytes:
    """The body, of which these routes need none."""
    return await context.read(request) or b"{}"


def read_update(data: bytes) -> UpdateWeightsFields:
    """The fields of a change of weights; raises InvalidRequest for what cannot be honoured."""
    fields = _update_fields.decode(data)
    refuse(_update_refusals.decode(data))
    if fields.flush_cache is False:
        raise InvalidRequest("the cache of other weights is never used; leave flush_cache out", param="flush_cache")
    return fields


def read_num_steps(data: bytes) -> int:
    """How many steps to record, 0 for no end; raises InvalidRequest for what cannot be honoured."""
    refuse(_profile_refusals.decode(data))
    return _profile_fields.decode(data).num_steps or 0


def check_memory_fields(data: bytes) -> None:
    """Raise InvalidRequest unless all memory is meant."""
    fields = _memory_fields.decode(data)
    if fields.tags is not None and not set(fields.tags) >= EVERYTHING:
        raise InvalidRequest("weights and kv_cache are released and resumed together here; leave tags out", param="tags")
