"""Sessions: conversations whose tokens the server remembers, so that a client sends only what is new.

Owns the turns of every open session; does not run requests. Invariant: a turn's ids are those of its request, prompt and
completion; what a session composes depends on finished turns only; a session that nobody used for its timeout is gone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from sapwood.errors import InvalidRequest, Overloaded
from sapwood.server.record import RecordState, RequestRecord

MAX_SESSIONS = 4096
MAX_TURNS = 4096
DEFAULT_TIMEOUT_S = 3600.0


class SessionParams(msgspec.Struct, kw_only=True):
    """`session_params` of a request. With `rid` it continues after that turn (without: it begins anew): its ids follow those of
    the turn, or replace them from token `offset` on. `replace` first forgets what came after the turn (without `rid`: all)."""

    id: str | None = None
    rid: str | None = None
    offset: int | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


@dataclass(slots=True, eq=False)
class Turn:
    """One request of a session, and those that continue it."""

    rid: str
    parent: Turn | None
    record: RequestRecord | None = None
    next: list[Turn] = field(default_factory=list)

    def subtree(self) -> Iterator[Turn]:
        """This turn and all that follow from it."""
        yield self
        for turn in self.next:
            yield from turn.subtree()

    @property
    def is_running(self) -> bool:
        """Whether its request is unfinished."""
        return self.record is not None and self.record.state is not RecordState.CLOSED


@dataclass(slots=True)
class Session:
    """One session. `capacity` bounds the tokens of a turn's prompt; times in seconds."""

    name: str
    capacity: int
    timeout_s: float
    last_used_s: float
    turns: dict[str, Turn] = field(default_factory=dict)


class Sessions:
    """All sessions of a server. `release` is told the names of those that ended, `abort` the rids of requests that must end."""

    def __init__(self, clock: Callable[[], float], release: Callable[[list[str]], None], abort: Callable[[str], object]) -> None:
        self._clock = clock
        self._release = release
        self._abort = abort
        self._sessions: dict[str, Session] = {}

    def open(self, name: str | None, capacity: int, timeout_s: float | None) -> str:
        """A new session's name; raises InvalidRequest when it exists."""
        self.expire()
        name = name or uuid.uuid4().hex
        if name in self._sessions:
            raise InvalidRequest(f"session {name[:200]!r} is open already; close it, or choose another id", param="session_id")
        if len(self._sessions) >= MAX_SESSIONS:
            raise Overloaded(f"{MAX_SESSIONS} sessions are open; close some", retry_after_s=1.0)
        self._sessions[name] = Session(name, capacity, timeout_s or DEFAULT_TIMEOUT_S, self._clock())
        return name

    def close(self, name: str) -> None:
        """Forget a session; its requests run on."""
        self._find(name)
        del self._sessions[name]
        self._release([name])

    def expire(self) -> None:
        """Forget the sessions that were not used for too long."""
        now_s = self._clock()
        gone = [name for name, session in self._sessions.items() if now_s - session.last_used_s > session.timeout_s]
        for name in gone:
            del self._sessions[name]
        if gone:
            self._release(gone)

    def timeout_s(self, name: str | None) -> float:
        """How long the session lives unused."""
        return self._find(name).timeout_s

    def compose(self, params: SessionParams, ids: list[int], limit: int) -> list[int]:
        """The whole prompt of a turn that brings `ids`; at most `limit` tokens. Changes nothing."""
        session = self._find(params.id)
        known = self._known_ids(session, params)
        offset = params.offset or 0
        if not -len(known) <= offset <= len(known):
            raise InvalidRequest(f"offset {offset} lies outside the {len(known)} tokens of turn {params.rid!r}", param="offset")
        prompt = (known[:offset] if offset else known) + ids
        if not prompt:
            raise InvalidRequest("the first turn of a session must not be empty; send some text", param="text")
        if len(prompt) > min(session.capacity, limit):
            message = f"the turn has {len(prompt)} tokens, more than the session may hold ({min(session.capacity, limit)})"
            raise InvalidRequest(f"{message}; open one with a larger capacity_of_str_len, or begin anew", param="session_params")
        return prompt

    def _known_ids(self, session: Session, params: SessionParams) -> list[int]:
        if params.rid is None:
            return []
        turn = session.turns.get(params.rid)
        if turn is None or turn.record is None:
            raise InvalidRequest(f"session {session.name[:200]!r} has no turn {params.rid[:200]!r}", param="rid")
        if turn.is_running and not params.replace:
            raise InvalidRequest(f"turn {params.rid[:200]!r} has not finished; wait for it, or replace it", param="rid")
        completion = [] if params.drop_previous_output else turn.record.token_ids
        return [*turn.record.prompt.token_ids, *completion]

    def begin(self, params: SessionParams, rid: str, record: RequestRecord) -> None:
        """The request of a composed turn was accepted."""
        session = self._find(params.id)
        parent = session.turns.get(params.rid) if params.rid is not None else None
        if params.replace:
            self._forget_after(session, parent)
        turn = Turn(rid, parent, record)
        if parent is not None:
            parent.next.append(turn)
        session.turns[rid] = turn
        while len(session.turns) > MAX_TURNS:
            del session.turns[next(iter(session.turns))]

    def _forget_after(self, session: Session, parent: Turn | None) -> None:
        """Turns after `parent` (all, without one) are gone, and end if they run; `parent` itself ends where it is."""
        gone = list(session.turns.values()) if parent is None else [turn for child in parent.next for turn in child.subtree()]
        for turn in gone:
            session.turns.pop(turn.rid, None)
            if turn.is_running:
                self._abort(turn.rid)
        if parent is not None:
            parent.next.clear()
            if parent.is_running:
                self._abort(parent.rid)

    def _find(self, name: str | None) -> Session:
        self.expire()
        session = self._sessions.get(name or "")
        if session is None:
            raise InvalidRequest(f"session {str(name)[:200]!r} does not exist (any more); open one", param="session_params")
        session.last_used_s = self._clock()
        return session
