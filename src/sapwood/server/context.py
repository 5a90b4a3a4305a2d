"""What the routes share, handed to each family of routes when the application is made.

Holds no state of its own. Invariant: everything in it lives as long as the application.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request

from sapwood.config.sections import ServerSection
from sapwood.core.sampling import SamplingParams
from sapwood.errors import InvalidRequest, PromptTooLong, UnknownModel
from sapwood.grammar.check import ConstraintChecker
from sapwood.server.answers import Reading
from sapwood.server.backend import Pieces, ServedModel
from sapwood.server.body import Decoder, T, read_body
from sapwood.server.constraints import Wanted
from sapwood.server.depth import check_depth
from sapwood.server.frontend import Frontend
from sapwood.server.gradual import in_slices, open_gradually
from sapwood.server.limits import check_room, check_state
from sapwood.server.requests import GenerateRequest, named_as
from sapwood.server.stream import Stream
from sapwood.tokenizer.fim import FimTokens


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The registry, the model and the settings."""

    frontend: Frontend
    model: ServedModel
    settings: ServerSection
    constraints: ConstraintChecker = field(default_factory=ConstraintChecker)

    async def body(self, request: Request, decoder: Decoder[T]) -> T:
        """The request's body, decoded."""
        return decoder.decode(await self.read(request))

    async def read(self, request: Request) -> bytes:
        """The request's body as it came, if it is neither too large nor nested too deeply."""
        data = await read_body(request, self.settings.max_body_bytes, self.settings.body_timeout_s)
        check_depth(data, self.settings.max_json_depth)
        return data

    async def open(self, request: GenerateRequest) -> Stream:
        """Submit a call; while a large one is on its way in, others go on."""
        return await open_gradually(self.frontend, request)

    def check_model(self, name: str | None) -> None:
        """Raise UnknownModel unless `name` is this server's model."""
        if not self.model.answers_to(name):
            raise UnknownModel(f"model {str(name)[:200]!r} is not served here; ask for {self.model.name!r}", param="model")

    def check_texts(self, lengths: Iterable[int], n: int | None, name: str) -> None:
        """Refuse before any work what could not be accepted anyway: too many samples, or a text too long for any prompt.

        `lengths` are the texts', in characters; `name` is the field that they came in.
        """
        check_state(self.frontend.state)
        counts, limits = list(lengths), self.frontend.limits
        check_room(self.frontend.num_open, len(counts) * max(1, n or 1), limits.max_open_requests)
        if limits.max_prompt_chars is not None and max(counts) > limits.max_prompt_chars:
            raise PromptTooLong(
                f"{name} has {max(counts)} characters, far more than this model's maximum context length is "
                f"({limits.max_request_tokens} tokens, the completion included); shorten the {name}",
                param=name,
            )

    async def constrain(self, params: SamplingParams, wanted: Wanted | None) -> SamplingParams:
        """The parameters with the constraint, once it is known to compile; raises InvalidRequest naming the client's field."""
        if wanted is None:
            return params
        with named_as(wanted.names):
            await self.constraints.check(wanted.constraint, self.frontend.limits.vocab_size)
        return msgspec.structs.replace(params, constraint=wanted.constraint)

    async def shape(self, reading: Reading, params: SamplingParams) -> SamplingParams:
        """The parameters for an answer that is to be read so: calls that are forced or bound are a constraint, and a constraint
        begins when the model has thought."""
        params = await self.constrain(reading.params(params), reading.bound())
        end = reading.form.thought_end(reading.prompt_end)
        if params.constraint is None or not end:
            return params
        ids = tuple(await self.encode([(end, True)], add_special=False, name="prompt"))
        return msgspec.structs.replace(params, constraint=msgspec.structs.replace(params.constraint, starts_after=ids))

    def fim(self) -> FimTokens:
        """The tokens for filling in the middle; raises InvalidRequest for a model that cannot."""
        if self.model.fim is None:
            raise InvalidRequest("suffix: this model's vocabulary has no tokens for filling in; leave it out", param="suffix")
        return self.model.fim

    async def encode(self, pieces: Pieces, *, add_special: bool, name: str) -> list[int]:
        """The ids of a prompt; `name` is the field it came in."""
        check_state(self.frontend.state)
        if not any(text for text, _ in pieces):
            raise InvalidRequest(f"{name} must not be empty; send some text", param=name)
        return await self.frontend.backend.tokenize(pieces, add_special)

    async def encode_all(self, prompts: Iterable[Pieces], *, add_special: bool, name: str) -> list[list[int]]:
        """The ids of several."""
        return [await self.encode(pieces, add_special=add_special, name=name) async for pieces in in_slices(prompts)]
