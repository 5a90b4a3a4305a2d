"""What the routes share, handed to each family of routes when the application is made.

Holds no state of its own. Invariant: everything in it lives as long as the application.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from sapwood.config.sections import ServerSection
from sapwood.errors import InvalidRequest, UnknownModel
from sapwood.server.backend import Pieces, ServedModel
from sapwood.server.body import Decoder, T, read_body
from sapwood.server.frontend import Frontend
from sapwood.server.limits import MAX_BODY_BYTES, check_state


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The registry, the model and the settings."""

    frontend: Frontend
    model: ServedModel
    settings: ServerSection
    max_body_bytes: int = MAX_BODY_BYTES

    async def body(self, request: Request, decoder: Decoder[T]) -> T:
        """The request's body, decoded."""
        return decoder.decode(await read_body(request, self.max_body_bytes))

    def check_model(self, name: str | None) -> None:
        """Raise UnknownModel unless `name` is this server's model."""
        if not self.model.answers_to(name):
            raise UnknownModel(f"model {str(name)[:200]!r} is not served here; ask for {self.model.name!r}", param="model")

    async def encode(self, pieces: Pieces, *, add_special: bool, name: str) -> list[int]:
        """The ids of a prompt, refusing early what could not be accepted anyway; `name` is the field it came in."""
        check_state(self.frontend.state)
        num_chars = sum(len(text) for text, _ in pieces)
        if not num_chars:
            raise InvalidRequest(f"{name} must not be empty; send some text", param=name)
        return await self.frontend.backend.tokenize(pieces, add_special)
