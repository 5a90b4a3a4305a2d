"""What stands around a message of each role, so that a conversation only ever grows at its end.

Owns role marks and how they are read off a chat template; does not know ids. Invariant: marks come from the template alone; what
a program says inside a message is never taken for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.errors import InvalidRequest

Render = Callable[[Sequence[Mapping[str, str]], bool], str]
"""(messages, whether to add what an answer begins with) -> the prompt's text; raises InvalidRequest."""

ROLES = ("system", "user", "assistant")
_PROBES = {"system": "QZSYSTEMZQ", "user": "QZUSERZQ", "assistant": "QZANSWERZQ"}


@dataclass(frozen=True, slots=True)
class RoleMarks:
    """`opening[(previous role or None, role)]` stands before a message, `closing[role]` after it."""

    opening: Mapping[tuple[str | None, str], str]
    closing: Mapping[str, str]

    def open(self, previous: str | None, role: str) -> str:
        """What a message begins with."""
        return self.opening.get((previous, role), self.opening.get((None, role), ""))

    def close(self, role: str) -> str:
        """What a message ends with."""
        return self.closing.get(role, "")


def plain_marks(before: Mapping[str, str], after: Mapping[str, str]) -> RoleMarks:
    """Marks that do not depend on what went before."""
    return RoleMarks({(None, role): text for role, text in before.items()}, dict(after))


def _chatml() -> RoleMarks:
    return plain_marks({role: f"<|im_start|>{role}\n" for role in ROLES}, dict.fromkeys(ROLES, "<|im_end|>\n"))


NAMED_MARKS: dict[str, RoleMarks] = {
    "default": plain_marks({"system": "SYSTEM:", "user": "USER:", "assistant": "ASSISTANT:"}, dict.fromkeys(ROLES, "\n")),
    "chatml": _chatml(),
    "llama-3-instruct": plain_marks(
        {role: f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in ROLES}, dict.fromkeys(ROLES, "<|eot_id|>")
    ),
    "gemma-it": RoleMarks(  # the system's words begin the user's message
        {
            (None, "system"): "<start_of_turn>user\n",
            ("system", "user"): "",
            (None, "user"): "<start_of_turn>user\n",
            (None, "assistant"): "<start_of_turn>model\n",
        },
        {"system": "\n\n", "user": "<end_of_turn>\n", "assistant": "<end_of_turn>\n"},
    ),
}
"""For models without a template of their own ("default"), and for programs that want another one."""


def named_marks(name: str) -> RoleMarks:
    """Marks by name; raises InvalidRequest with the names that there are."""
    if name not in NAMED_MARKS:
        raise InvalidRequest(f"chat_template_name must be one of {', '.join(NAMED_MARKS)}, got {name!r}", param="chat_template")
    return NAMED_MARKS[name]


def read_marks(render: Render) -> RoleMarks:
    """The marks of a template, found by rendering short conversations; raises InvalidRequest when it renders none."""
    user, answer = _PROBES["user"], _PROBES["assistant"]
    alone, talk = [_message("user")], [_message("user"), _message("assistant"), _message("user")]
    head, user_end = _around(render(alone, False), user)
    _, asked = _around(render(alone, True), user)
    answered = render(talk, False)
    between = answered.split(answer, 1)[1].split(user, 1)[0]
    answer_end = _around(render(talk[:2], False), answer)[1]
    answer_end = answer_end if between.startswith(answer_end) else ""
    user_begin = between.removeprefix(answer_end)
    opening: dict[tuple[str | None, str], str] = {
        (None, "user"): head,
        ("assistant", "user"): user_begin,
        ("user", "user"): user_begin,
        (None, "assistant"): asked.removeprefix(user_end),
    }
    closing = {"user": user_end, "assistant": answer_end}
    system = _read_system(render, user_begin)
    if system is None:  # the template takes no system message: it is said by the user
        opening[(None, "system")], closing["system"] = head, "\n\n"
        opening[("system", "user")] = ""
    else:
        opening[(None, "system")], closing["system"], opening[("system", "user")] = system
    return RoleMarks(opening, closing)


def _read_system(render: Render, user_begin: str) -> tuple[str, str, str] | None:
    """(before a system message, after it, before the user's message that follows)."""
    try:
        text = render([_message("system"), _message("user")], False)
    except InvalidRequest:
        return None
    if _PROBES["system"] not in text or _PROBES["user"] not in text:
        return None
    before, rest = text.split(_PROBES["system"], 1)
    between = rest.split(_PROBES["user"], 1)[0]
    if user_begin and between.endswith(user_begin):
        return before, between.removesuffix(user_begin), user_begin
    return before, between, ""


def _message(role: str) -> dict[str, Any]:
    return {"role": role, "content": _PROBES[role]}


def _around(text: str, probe: str) -> tuple[str, str]:
    before, found, after = text.partition(probe)
    if not found:
        raise InvalidRequest("the chat template leaves messages out; choose marks by chat_template_name", param="chat_template")
    return before, after
