"""TLS settings from the options of a store URL, shared by all stores that connect to a server."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from lockfast.errors import StoreMisconfiguredError

if TYPE_CHECKING:
    from lockfast.stores.registry import StoreUrl

TLS_OPTIONS: Final = ("ca", "cert", "key", "verify")

_OUTDATED: Final = (9, 10)
_OTHER_HOST: Final = (62, 64)
"""OpenSSL's codes for a certificate that is not valid now, and for another host or IP address."""


def certificate_advice(error: ssl.SSLCertVerificationError) -> str:
    """Return what to do about a certificate of a server that was not accepted."""
    if error.verify_code in _OUTDATED:
        return "have the server's certificate renewed, and check the clock of this machine"
    if error.verify_code in _OTHER_HOST:
        return "connect to a host name that is in the certificate"
    return "name the authority that signed it with ?ca=FILE"


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
