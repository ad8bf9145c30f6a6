"""Self-signed TLS certificate and its key, for one transfer whose relays trust no other, or for a web page."""

from collections.abc import Sequence


def certificate(subject: str = "dlami copy", days: int = 2, addresses: Sequence[str] = ()) -> tuple[str, str]:
    """Return a self-signed certificate and its key, both as PEM.

    It is valid from two days ago, since clocks differ, until `days` from now.

    Args:
        addresses: IP addresses of the server, for clients that verify the server's address.

    Args:
        addresses: of the server, for clients that look for theirs in it.
    """
    import datetime
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject[:64])])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    if addresses:
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(a)) for a in addresses])
        builder = builder.add_extension(names, critical=False)
    made = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    return made.public_bytes(pem).decode(), key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
