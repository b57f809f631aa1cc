"""TLS settings from the options of a store URL, shared by all stores that connect to a server."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from lockfast.errors import StoreMisconfiguredError

if TYPE_CHECKING:
    from lockfast.stores.registry import StoreUrl

TLS_OPTIONS: Final = ("ca", "cert", "key", "verify")


def tls_context(url: StoreUrl, *schemes: str) -> ssl.SSLContext | None:
    """Return the TLS context for `url`, or None if its scheme is none of `schemes`."""
    if url.scheme not in schemes:
        for name in TLS_OPTIONS:
            if name in url.options:
                raise StoreMisconfiguredError(
                    url.label, f"{name}= requires TLS", f"use {schemes[0]}://"
                )
        return None
    try:
        context = ssl.create_default_context(cafile=url.options.get("ca"))
        if "cert" in url.options:
            # With password="" OpenSSL refuses an encrypted key instead of prompting for it.
            context.load_cert_chain(url.options["cert"], url.options.get("key"), password="")
    except OSError as error:
        raise StoreMisconfiguredError(
            url.label, f"cannot load a certificate or key ({error})", "check ca=, cert= and key="
        ) from None
    if not url.flag("verify", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
