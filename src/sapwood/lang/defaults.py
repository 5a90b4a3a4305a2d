"""The backend that programs use when they name none, and what counts as a backend.

Owns one reference, as SGLang's language does; everything can also be said explicitly. Invariant: what `the_backend` returns has
been set or given by somebody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from sapwood.errors import ConfigError
from sapwood.lang.backends.base import Backend
from sapwood.lang.backends.local import LocalBackend


@dataclass(slots=True)
class Defaults:
    """What is used where nothing is said."""

    backend: Backend | None = None


DEFAULTS = Defaults()


def set_default_backend(backend: Any) -> None:
    """Let programs run on this: a backend, or an `LLM`, `Engine` or `Runtime`."""
    DEFAULTS.backend = as_backend(backend)


def the_backend(backend: Any = None) -> Backend:
    """The given backend, or else the default one; raises ConfigError when there is neither."""
    if backend is not None:
        return as_backend(backend)
    if DEFAULTS.backend is None:
        raise ConfigError(
            'no backend; call set_default_backend(RuntimeEndpoint("http://127.0.0.1:30000")) or set_default_backend(LLM())'
        )
    return DEFAULTS.backend


def as_backend(value: Any) -> Backend:
    """The backend that something is, has (`lang_backend`) or, for an LLM, gets; raises TypeError for anything else."""
    value = getattr(value, "lang_backend", value)
    if hasattr(value, "submit") and hasattr(value, "prompts"):  # an LLM, whose module loads torch
        return LocalBackend(value)
    if not hasattr(value, "marks") or not hasattr(value, "score"):
        raise TypeError(f"a {type(value).__name__} is no backend; give an LLM, an Engine, a RuntimeEndpoint, OpenAI or Anthropic")
    return cast(Backend, value)


def flush_cache(backend: Any = None) -> bool:
    """Empty the prefix cache of a backend, or of the default one; False where there is none to empty."""
    if backend is None and DEFAULTS.backend is None:
        return False
    return the_backend(backend).flush_cache()


def get_server_info(backend: Any = None) -> dict[str, Any] | None:
    """What a backend, or the default one, says about itself."""
    if backend is None and DEFAULTS.backend is None:
        return None
    return the_backend(backend).get_server_info()
