"""A conversation that is longer than the context, without its oldest turns: `truncation: "auto"` of responses.

Knows messages and how long a prompt may be. Invariant: what is left begins with a message of the user, so that no answer of a
tool stands without its call; instructions stay, and so does the last question.
"""

from __future__ import annotations

from collections.abc import Sequence

from sapwood.server.context import ServerContext
from sapwood.server.openai.prompt import ChatPrompt, chat_prompt, check_messages, num_chars
from sapwood.server.openai.schema import Message
from sapwood.tokenizer.chat import ChatOptions

ROOM_SHARE = 8
"""What is left to an answer whose length nobody said: the context's length divided by it."""
_INSTRUCTIONS = ("system", "developer")


def turns(messages: Sequence[Message]) -> list[int]:
    """Where the conversation may begin: 0, and at every message of the user after the first."""
    return [0, *[index for index, message in enumerate(messages) if message.role == "user"][1:]]


def from_turn(messages: Sequence[Message], start: int) -> list[Message]:
    """The instructions before `start`, and everything from there on."""
    return (
        [*(message for message in messages[:start] if message.role in _INSTRUCTIONS), *messages[start:]]
        if start
        else list(messages)
    )


async def prompt_that_fits(
    context: ServerContext, messages: Sequence[Message], options: ChatOptions, num_wanted: int | None
) -> ChatPrompt:
    """The prompt of as much of the conversation as leaves room for `num_wanted` tokens.

    Raises InvalidRequest, as for any prompt, where the last turn alone is too long to be one.
    """
    limits = context.frontend.limits
    room = min(num_wanted or limits.max_request_tokens // ROOM_SHARE, limits.max_request_tokens // 2)
    starts, prompts = turns(messages), dict[int, ChatPrompt]()

    async def fits(index: int) -> bool:
        chosen = from_turn(messages, starts[index])
        is_huge = limits.max_prompt_chars is not None and sum(map(num_chars, chosen)) > limits.max_prompt_chars
        if is_huge or len(chosen) > limits.max_request_tokens:
            return False
        prompts[index] = prompt = await chat_prompt(context, chosen, options)
        return len(prompt.token_ids) + room <= limits.max_request_tokens

    low, high = 0, len(starts) - 1  # the fewest turns to leave out are in [low, high]
    middle = 0  # most often none has to go
    while low < high:
        low, high = (low, middle) if await fits(middle) else (middle + 1, high)
        middle = (low + high) // 2
    if low in prompts:
        return prompts[low]
    last = from_turn(messages, starts[low])
    check_messages(context, last, None)
    return await chat_prompt(context, last, options)
