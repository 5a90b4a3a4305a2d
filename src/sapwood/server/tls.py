"""HTTPS: what uvicorn is told, and a certificate that cannot be used is an error before anything starts.

Knows certificates' files; nothing of HTTP. Invariant: the options are uvicorn's own.
"""

from __future__ import annotations

import ssl
from typing import Any

from sapwood.config.sections import TlsSection
from sapwood.errors import ConfigError


def tls_options(tls: TlsSection | None) -> dict[str, Any]:
    """What `uvicorn.Config` needs for it; nothing for plain HTTP."""
    if tls is None:
        return {}
    return {
        "ssl_certfile": tls.certfile,
        "ssl_keyfile": tls.keyfile,
        "ssl_keyfile_password": tls.keyfile_password,
        "ssl_ca_certs": tls.ca_certs,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if tls.ca_certs else ssl.CERT_NONE,
    }


def check_tls(tls: TlsSection | None) -> None:
    """Raise ConfigError unless the certificate and its key can be read and belong together."""
    if tls is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certfile, tls.keyfile, lambda: tls.keyfile_password or "")
    except OSError as error:  # an SSLError is one
        raise _unusable("--ssl-certfile", f"{tls.certfile} and its key", error) from None
    if tls.ca_certs:
        try:
            context.load_verify_locations(tls.ca_certs)
        except OSError as error:
            raise _unusable("--ssl-ca-certs", tls.ca_certs, error) from None


def _unusable(flag: str, what: str, error: OSError) -> ConfigError:
    reason = error.strerror or "no certificate of this form"
    return ConfigError(f"{flag}: cannot use {what} ({reason}); name PEM files that belong together", param=flag)
