"""`s`: the state that a program talks to, and groups of states that were forked off together.

Owns the manner of speaking (`s += ...`, `s["name"]`, roles, forks); what is said goes to a stream. Invariant: nothing here waits
except for reading.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.lang.ir import Expr, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, as_expr
from sapwood.lang.stream import Stream

JOIN_MODES = ("gather_variable", "concate_and_append")


class ProgramState:
    """One growing text. Everything that reads waits for what it reads; an error of a generation is raised by reading it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.ret_value: Any = None

    # ------------------------------------------------------------------------------------------------------------ speaking
    def __iadd__(self, other: object) -> ProgramState:
        self._stream.append(as_expr(other))
        return self

    def system(self, expr: object = None) -> Any:
        """A message of the system as an expression; without one a context manager, inside which `s += ...` says it."""
        return self._role("system", expr)

    def user(self, expr: object = None) -> Any:
        """A message of the user, like `system`."""
        return self._role("user", expr)

    def assistant(self, expr: object = None) -> Any:
        """A message of the assistant, like `system`."""
        return self._role("assistant", expr)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """What is said inside becomes the variable `name`."""
        self._stream.append(Expr((ScopeBegin(name),)))
        yield
        self._stream.append(Expr((ScopeEnd(name),)))

    # ------------------------------------------------------------------------------------------------------------- reading
    def __getitem__(self, name: str) -> Any:
        return self._stream.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._stream.set(name, value)

    def __contains__(self, name: str) -> bool:
        return self._stream.has(name)

    def get_var(self, name: str) -> Any:
        """`s[name]`."""
        return self._stream.get(name)

    def set_var(self, name: str, value: Any) -> None:
        """`s[name] = value`."""
        self._stream.set(name, value)

    def get_meta_info(self, name: str) -> Any:
        """What is known about the generation of a variable: SGLang's `meta_info`, or for `select` the choices' scores."""
        return self._stream.meta(name)

    def text(self) -> str:
        """Everything said so far, role marks included."""
        return self._stream.text()

    def messages(self) -> list[dict[str, str]]:
        """What was said in roles, as messages."""
        return self._stream.messages()

    def error(self) -> BaseException | None:
        """What failed here, or (in the state that `run` returns) in any branch; None when nothing did."""
        return self._stream.error()

    def sync(self) -> None:
        """Wait until everything said so far is done; raises what failed."""
        self._stream.sync()

    def cancel(self) -> None:
        """End the program's generations; whoever waits for one gets Aborted."""
        self._stream.cancel()

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text, or that of one variable, in pieces as they come. Run with `stream=True` to get each token's."""
        return iter(self._stream.pieces(var_name))

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """`text_iter` on an event loop; cancelling the task that reads ends the program. With `return_meta_data` each piece comes
        with the variable's meta data, which is empty until its end."""
        if return_meta_data and var_name is None:
            raise InvalidRequest("meta data belongs to a variable; give var_name", param="var_name")
        async for piece in self._stream.pieces(var_name):
            yield (piece, {}) if return_meta_data else piece
        if return_meta_data and var_name is not None:
            yield "", self._stream.meta(var_name)

    # ------------------------------------------------------------------------------------------------------------ branches
    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> ForkGroup:
        """States that go on from here, each on its own, all at once."""
        if size < 1:
            raise InvalidRequest(f"fork makes at least one state, not {size}", param="size")
        if position_ids_offset is not None:
            raise InvalidRequest(
                "positions of branches cannot be moved; leave position_ids_offset out", param="position_ids_offset"
            )
        return ForkGroup(self._stream, [ProgramState(stream) for stream in self._stream.fork(size)])

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """One state that goes on from here; leaving the block waits for it."""
        [stream] = self._stream.fork(1)
        yield ProgramState(stream)
        stream.sync()

    def _role(self, role: str, expr: object) -> Any:
        return self._in_role(role) if expr is None else role_expr(role, expr)

    @contextmanager
    def _in_role(self, role: str) -> Iterator[None]:
        self._stream.append(Expr((RoleBegin(role),)))
        yield
        self._stream.append(Expr((RoleEnd(role),)))


class ForkGroup:
    """The branches of one fork: a sequence, and what is said to the group is said to each of them."""

    def __init__(self, parent: Stream, states: list[ProgramState]) -> None:
        self._parent = parent
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, index: int) -> ProgramState:
        return self._states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        if state is not self._states[index]:  # forks[i] += ... assigns the same state again
            raise TypeError("a branch cannot be replaced")

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    def __iadd__(self, other: object | Callable[[int], object]) -> ForkGroup:
        for index, state in enumerate(self._states):
            state += other(index) if callable(other) else other
        return self

    def __enter__(self) -> ForkGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.join()

    def join(self, mode: str = "gather_variable") -> None:
        """Wait for the branches. Their variables become lists in the parent; by "concate_and_append" what they said is said
        there.

        Raises what failed in a branch.
        """
        if mode not in JOIN_MODES:
            raise InvalidRequest(f"mode must be one of {', '.join(JOIN_MODES)}, got {mode!r}", param="mode")
        streams = [state._stream for state in self._states]
        if mode == "concate_and_append":
            self._parent.append(as_expr("".join(stream.text(own=True) for stream in streams)))
            return
        names = [stream.names() for stream in streams]
        for name in dict.fromkeys(name for own in names for name in own):
            self._parent.set(
                name, [stream.get(name) if name in own else None for stream, own in zip(streams, names, strict=True)]
            )


def role_expr(role: str, expr: object = None) -> Expr:
    """A whole message."""
    said = Expr() if expr is None else as_expr(expr)
    return Expr((RoleBegin(role), *said.parts, RoleEnd(role)))
