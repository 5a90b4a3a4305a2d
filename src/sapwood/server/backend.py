"""What the server needs from the rest of the house: two seams, wired by whoever starts it.

`Backend` reaches the other processes (or their in-process twins); `Vocabulary` is the part of a tokenizer that replies need.
Invariant: nothing here blocks the event loop; what arrives is handed to `Frontend.on_message` on that loop, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sapwood.messages.types import Forget, ToWorker, Watch
from sapwood.parsing.formats import OutputFormat
from sapwood.tokenizer.chat import ChatOptions
from sapwood.tokenizer.fim import FimTokens
from sapwood.tokenizer.frame import PromptFrame

Pieces = list[tuple[str, bool]]
"""One prompt as runs of (text, whether control tokens in it are parsed)."""


class Backend(Protocol):
    """The way to the tokenizers, the worker's rank 0 and the detokenizer of one replica."""

    @property
    def epoch(self) -> int:
        """The replica's current life; answers to older ones are stale."""
        ...

    @property
    def alive(self) -> bool:
        """Whether every process that a request needs is running."""
        ...

    def send(self, message: ToWorker) -> None:
        """Queue a message for rank 0; never blocks, raises Overloaded when the outbox is full."""
        ...

    def watch(self, message: Watch) -> None:
        """Tell the detokenizer of a request before its `Submit` is sent."""
        ...

    def forget(self, message: Forget) -> None:
        """Tell the detokenizer that nobody waits for these requests any more."""
        ...

    async def tokenize(self, pieces: Pieces, add_special: bool) -> list[int]:
        """The ids of one prompt, computed off the event loop; raises InvalidRequest for a text that has none."""
        ...


class Vocabulary(Protocol):
    """The part of a tokenizer that replies are made with."""

    @property
    def vocab_size(self) -> int: ...

    def token_text(self, token_id: int) -> str:
        """The text of one id on its own; U+FFFD where it is not whole characters."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one id."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a run of ids."""
        ...


ChatRenderer = Callable[[list[dict[str, Any]], ChatOptions], Pieces]
"""Chat messages to the pieces of a prompt; control tokens come from the template alone (`tokenizer.chat.ChatRenderer.render`)."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients see it. `aliases` are further names that requests may use.

    `sampling_defaults` (the checkpoint's generation config, by `SamplingParams` names) hold for the OpenAI routes; `facts` are
    shown by `/model_info`, `tokenizer_facts` (special tokens, the chat template) by `/tokenizer_info`. `fim` is there when
    the model can fill in the middle; `frame` surrounds prompts and pairs of texts; `output` is how it writes calls and
    reasoning, `reads_tools` whether its chat template shows tools to it. `format` and `num_bytes` are those of its files.
    """

    name: str
    path: str
    vocabulary: Vocabulary
    render_chat: ChatRenderer | None = None
    aliases: tuple[str, ...] = ()
    sampling_defaults: tuple[tuple[str, Any], ...] = ()
    facts: tuple[tuple[str, Any], ...] = ()
    tokenizer_facts: tuple[tuple[str, Any], ...] = ()
    fim: FimTokens | None = None
    frame: PromptFrame = PromptFrame()
    output: OutputFormat = OutputFormat()
    reads_tools: bool = False
    format: str = ""
    num_bytes: int = 0

    def answers_to(self, name: str | None) -> bool:
        """Whether a request for `name` is meant for this model; no name means the served one."""
        return not name or name == self.name or name == self.path or name in self.aliases
