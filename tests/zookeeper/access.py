"""A server with users, by SASL and by `digest`, that also listens for TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.servers.ports import free_port
from tests.servers.zookeeper import ZooKeeperEnsemble

PASSWORD = "s3cret:of:bob"
JAAS = f"""Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_bob="{PASSWORD}";
}};
"""


class Guarded(NamedTuple):
    ensemble: ZooKeeperEnsemble
    tls_port: int
    ca: Path
    cert: Path
    """The certificate of a client, with its key."""
    password_file: Path


def _with_pkcs8_key(leaf: trustme.LeafCert) -> bytes:
    """Return the certificate after its key, in the only form in which ZooKeeper reads a key."""
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem + b"".join(blob.bytes() for blob in leaf.cert_chain_pems)


@contextmanager
def guarded_server(directory: Path) -> Iterator[Guarded]:
    authority = trustme.CA()
    ca, cert, own = directory / "ca.pem", directory / "client.pem", directory / "server.pem"
    authority.cert_pem.write_to_path(str(ca))
    own.write_bytes(_with_pkcs8_key(authority.issue_cert("127.0.0.1", "localhost")))
    authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(
        str(cert)
    )
    jaas, password_file = directory / "jaas.conf", directory / "password"
    jaas.write_text(JAAS)
    password_file.write_text(PASSWORD + "\n")
    port = free_port()
    config = [
        f"secureClientPort={port}",
        "secureClientPortAddress=127.0.0.1",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"ssl.keyStore.location={own}",
        f"ssl.trustStore.location={ca}",
        "ssl.clientAuth=need",
        "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    ]
    jvm = [f"-Djava.security.auth.login.config={jaas}"]
    with ZooKeeperEnsemble(1, *config, jvm=jvm) as ensemble:
        yield Guarded(ensemble, port, ca, cert, password_file)
