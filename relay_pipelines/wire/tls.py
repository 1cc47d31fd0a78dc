"""TLS: a socket that proves who it talks to, and who it is if the broker asks."""

from __future__ import annotations

import functools
import socket
import ssl

from relay_pipelines.errors import ConfigError, PermissionDeniedError
from relay_pipelines.model import Cluster, Security


def wrap(plain: socket.socket, cluster: Cluster, host: str) -> socket.socket:
    """Return `plain`, or the same connection inside TLS if the cluster's protocol asks for it.

    Raises:
        PermissionDeniedError: the certificates do not match.
        OSError: the connection was lost, as a listener that does not speak TLS ends it, or a broker that is stopping.
        ConfigError: a certificate file cannot be read.
    """
    if not cluster.security.protocol.endswith("SSL"):
        return plain
    try:
        return _context(cluster.security).wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise PermissionDeniedError(
            f"{cluster}: the broker's certificate is not trusted: {error.verify_message}",
            remedy="check security.ca_location and the host names in the certificate",
        ) from error
    except ssl.SSLEOFError:
        raise  # says nothing of certificates, and may pass
    except ssl.SSLError as error:
        plain.close()
        raise PermissionDeniedError(
            f"{cluster}: TLS failed: {error.reason or error}",
            remedy="see whether the listener speaks TLS, and asks for a client certificate (security.certificate_location)",
        ) from error


@functools.lru_cache(maxsize=32)
def _context(security: Security) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security.ca_location)
        context.check_hostname = security.verify_hostname
        if security.certificate_location:
            context.load_cert_chain(security.certificate_location, security.key_location, security.key_password or "")
    except OSError as error:
        files = ", ".join(filter(None, (security.ca_location, security.certificate_location, security.key_location)))
        raise ConfigError(f"a certificate or key cannot be read from {files}: {error.strerror or error}") from error
    return context
