"""The keys that a server takes: where they come from, and which of them a request brings.

Knows headers and the key file; nothing of routes. Invariant: a key that came over the wire is compared with every known one in
constant time, and no key is ever shown.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers

from sapwood.config.sections import ServerSection
from sapwood.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Keys:
    """`users` open every route but the admin's; `admin` opens all. Where there are no users' keys, nobody needs one."""

    users: tuple[str, ...] = ()
    admin: str | None = None

    def open_route(self, headers: Headers) -> bool:
        """Whether a request with these headers may use a route that is not for admins."""
        return not self.users or _is_one_of(headers, (*self.users, *((self.admin,) if self.admin else ())))

    def open_admin_route(self, headers: Headers) -> bool:
        """The admin key if there is one, else a user's, else none."""
        wanted = (self.admin,) if self.admin else self.users
        return not wanted or _is_one_of(headers, wanted)


def read_keys(settings: ServerSection) -> Keys:
    """The keys of `--api-key` (separated by commas) and of `--api-key-file` (one in a line); raises ConfigError."""
    given = (settings.api_key or "").split(",")
    if settings.api_key_file:
        try:
            lines = Path(settings.api_key_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            message = f"--api-key-file: cannot read {settings.api_key_file} ({reason}); name a file with a key in each line"
            raise ConfigError(message, param="api_key_file") from None
        given += [line for line in lines if not line.lstrip().startswith("#")]
    users = tuple(dict.fromkeys(key.strip() for key in given if key.strip()))
    if not users and (settings.api_key or settings.api_key_file):
        raise ConfigError("--api-key and --api-key-file hold no key; give one, or leave them out", param="api_key")
    return Keys(users, settings.admin_api_key)


def name_of(headers: Headers, address: str) -> str:
    """Who asks: a digest of the key that came, or else the address."""
    offered = _offered(headers)
    return hashlib.sha256(offered).hexdigest() if offered else address


def _is_one_of(headers: Headers, keys: tuple[str, ...]) -> bool:
    offered = _offered(headers)
    matches = [hmac.compare_digest(offered, key.encode()) for key in keys]
    return any(matches)


def _offered(headers: Headers) -> bytes:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key", "")
    return given.strip().encode("latin-1", "replace")
