"""Choose the member of a cluster to ask, and translate connection errors."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lockfast.errors import (
    CHECK_ADDRESS,
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.stores.tls import certificate_advice

if TYPE_CHECKING:
    from lockfast.stores.registry import StoreUrl


class Member(NamedTuple):
    """The address of one server."""

    host: str
    """The host, or the path of a Unix socket, which begins with a slash."""
    port: int = 0

    @property
    def is_path(self) -> bool:
        return self.host.startswith("/")

    def __str__(self) -> str:
        """Return the value of the header `Host`."""
        if self.is_path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_member(url: StoreUrl, text: str, port: int, advice: str, *, host: str = "") -> Member:
    """Parse `host:port`, with defaults for both. Raises StoreMisconfiguredError."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:.%a-z]+\]|[^:\[\]/\s]*)(?::(\d{1,5}))?", text)
    named = (found[1].strip("[]") or host) if found is not None else ""
    if found is None or not named or int(found[2] or 1) not in range(1, 65536):
        raise StoreMisconfiguredError(url.label, "names no server", advice)
    return Member(named, int(found[2] or port))


class Members:
    """The servers of one store, and the current one. Thread-safe."""

    def __init__(
        self, label: str, members: Sequence[Member], tls: ssl.SSLContext | None = None
    ) -> None:
        self.label = label
        self.all = tuple(members)
        self.tls = tls
        self.failures = dict.fromkeys(self.all, 0)
        """How often each did not answer; listeners of a member notice when it increases."""
        self._at = 0

    @property
    def current(self) -> Member:
        return self.all[self._at]

    def suspect(self, member: Member) -> None:
        """Record that a member did not answer; switch to the next unless a caller already has."""
        self.failures[member] += 1
        if member == self.current:
            self._at = (self._at + 1) % len(self.all)


CHECK_TLS: Final = "if this persists, check whether it requires TLS or another client certificate"
"""A server that requires them often closes the connection without saying so."""
NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons if the other side answers a handshake with plain text."""


def unreachable(label: str, error: BaseException) -> StoreError:
    """Return the error for a failed connection attempt."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreMisconfiguredError(
            label,
            f"its certificate is not accepted ({error.verify_message})",
            certificate_advice(error),
        )
    if isinstance(error, ssl.SSLError) and "CERTIFICATE" in str(error).upper():
        return certificate_refused(label, error)
    if isinstance(error, ssl.SSLError) and error.reason in NOT_TLS:
        return StoreMisconfiguredError(
            label, "does not use TLS at this address", "use the scheme without TLS, or another port"
        )
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(label, "did not answer in time", CHECK_ADDRESS)
    is_tls_error = isinstance(error, ssl.SSLError)
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    advice = "check whether this port uses TLS" if is_tls_error else CHECK_ADDRESS
    if is_tls_error and "ALERT" in reason:
        advice = "check whether it requires a client certificate: ?cert=file&key=file"
    return StoreUnavailableError(label, f"cannot be reached ({reason})", advice)


def certificate_refused(label: str, error: BaseException) -> StoreMisconfiguredError:
    return StoreMisconfiguredError(
        label, f"did not accept our certificate ({error})", "add ?cert=file&key=file"
    )


def broken(label: str, error: BaseException) -> StoreError:
    """Return the error for a request that was sent before its connection failed."""
    if isinstance(error, ssl.SSLError) and "ALERT" in str(error):
        return certificate_refused(label, error)  # with TLS 1.3 it follows our handshake
    if isinstance(error, TimeoutError):
        return OutcomeUnknownError(label, "did not answer in time")
    if isinstance(error, OSError):
        return OutcomeUnknownError(label, "the connection broke before the answer came", CHECK_TLS)
    return OutcomeUnknownError(label, str(error), CHECK_TLS)


def ended(label: str, error: BaseException | None = None) -> StoreUnavailableError:
    """Return the error for a streamed reply that has ended."""
    if isinstance(error, StoreUnavailableError):
        return error
    return StoreUnavailableError(label, f"broke a watch ({error})" if error else "ended a watch")
