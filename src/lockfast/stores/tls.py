"""TLS as the options of a URL ask for it: the same for every store that has a server."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from lockfast.errors import StoreMisconfiguredError

if TYPE_CHECKING:
    from lockfast.stores.registry import StoreUrl

TLS_OPTIONS: Final = ("ca", "cert", "key", "verify")


def tls_context(url: StoreUrl, *schemes: str) -> ssl.SSLContext | None:
    """How to speak TLS with `url`; None unless it has one of these schemes, which do."""
    if url.scheme not in schemes:
        for name in TLS_OPTIONS:
            if name in url.options:
                raise StoreMisconfiguredError(
                    url.label, f"{name}= is of use with TLS only", f"write {schemes[0]}://"
                )
        return None
    try:
        context = ssl.create_default_context(cafile=url.options.get("ca"))
        if "cert" in url.options:
            # A key with a passphrase is refused: OpenSSL would ask for it at the terminal.
            context.load_cert_chain(url.options["cert"], url.options.get("key"), password="")
    except OSError as error:
        raise StoreMisconfiguredError(
            url.label, f"a certificate cannot be read ({error})", "look at ca=, cert= and key="
        ) from None
    if not url.flag("verify", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
