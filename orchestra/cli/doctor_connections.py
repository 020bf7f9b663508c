"""Whether the providers of the settings can be reached: a connection is made and closed, and nothing is asked."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from orchestra.cli.finding import Finding

if TYPE_CHECKING:
    from orchestra.config import ProviderConfig

__all__ = ["check_connections"]

_SECONDS = 3.0
_PORTS = {"http": 80, "https": 443}


def check_connections(providers: Mapping[str, ProviderConfig], *, seconds: float = _SECONDS) -> Iterator[Finding]:
    """Yield whether each provider's host takes a connection, and shows a certificate that is trusted.

    No key and no request is sent. All are tried at once, for ``seconds`` at most.
    """
    found: dict[str, str | None] = {}

    def look(url: str) -> None:
        found[url] = _trouble(url, seconds)

    urls = {provider.base_url for provider in providers.values() if not _has_proxy(provider.base_url)}
    threads = [threading.Thread(target=look, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:  # a name that nobody resolves may hold one for longer than a connection may
        thread.join(max(0.0, until - time.monotonic()))
    silent = f"no answer in {seconds:g}s"
    for name, provider in providers.items():
        url, title = provider.base_url, f"connection to {name}"
        if url not in urls:
            yield Finding(title, "ok", "goes through a proxy: not tried")
        elif (trouble := found.get(url, silent)) is None:
            yield Finding(title, "ok", urlsplit(url).netloc)
        else:
            remedy = f"start the server, or correct base_url in [providers.{name}]; --offline leaves this out"
            yield Finding(title, "warn", f"{urlsplit(url).netloc}: {trouble}", remedy)


def _trouble(url: str, seconds: float) -> str | None:
    """Return what keeps a connection to the host of ``url`` from being made; None where nothing does."""
    from orchestra.wire.base import certificates

    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        with socket.create_connection((host, parts.port or _PORTS[parts.scheme]), timeout=seconds) as connection:
            if parts.scheme == "https":
                certificates().wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not trusted: {error.verify_message}"
    except ssl.SSLError as error:
        return f"no TLS there: {error.reason or error}"
    except TimeoutError:
        return f"no answer in {seconds:g}s"
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _has_proxy(url: str) -> bool:
    parts = urlsplit(url)
    named = getproxies()
    return bool(named.get(parts.scheme) or named.get("all")) and not proxy_bypass(parts.hostname or "")
