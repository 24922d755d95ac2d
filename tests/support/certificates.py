"""An authority and certificates of it, made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

CONFIGURATION = """
[req]
distinguished_name = name
[name]
[ca]
default_ca = authority
[authority]
new_certs_dir = .
database = index
rand_serial = yes
default_md = sha256
policy = any
[any]
commonName = supplied
[root]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[here]
subjectAltName = IP:127.0.0.1,DNS:localhost
authorityKeyIdentifier = keyid
[every]
subjectAltName = IP:2001:db8::1,DNS:other.example,URI:spiffe://example/prometheus,email:ops@example
authorityKeyIdentifier = keyid
[elsewhere]
subjectAltName = DNS:other.example,IP:192.0.2.1
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True)
class Keys:
    """A folder with an authority (ca.pem) and certificates of it."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def openssl(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr

    def key(self, name: str) -> None:
        self.openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", f"{name}.key")

    def authority(self, name: str) -> None:
        self.key(name)
        self.openssl(
            *("req", "-x509", "-config", "conf", "-extensions", "root", "-key", f"{name}.key", "-days", "30"),
            *("-subj", f"/CN={name}", "-out", f"{name}.pem"),
        )

    def certificate(self, name: str, ca: str, names: str, start: str, end: str) -> None:
        self.key(name)
        self.openssl("req", "-new", "-config", "conf", "-key", f"{name}.key", "-subj", f"/CN={name}", "-out", "csr")
        self.openssl(
            *("ca", "-batch", "-notext", "-config", "conf", "-extensions", names, "-in", "csr"),
            *("-cert", f"{ca}.pem", "-keyfile", f"{ca}.key", "-out", f"{name}.pem"),
            *("-startdate", start, "-enddate", end),
        )
