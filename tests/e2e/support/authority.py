# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests of TLS. A test that imports this is skipped where there is no openssl."""

import pathlib
import shutil
import subprocess
import sys

if shutil.which("openssl") is None:
    print("skipped: openssl is not installed; deploy/setup.sh --tests installs it")
    sys.exit(77)


class Authority:
    """Signs certificates for 127.0.0.1 and rivulet.test into `folder`; `pem` is its own."""

    def __init__(self, folder: pathlib.Path, name: str):
        self.folder, self.name = folder, name
        self.pem = self._sign(name, "basicConstraints=critical,CA:TRUE")

    def sign(self, name):
        """Paths of a certificate and its key."""
        signed = self._sign(name, "subjectAltName=IP:127.0.0.1,DNS:rivulet.test", "-CA", self.pem, "-CAkey", self.key(self.name))
        return signed, self.key(name)

    def key(self, name):
        return self.folder / f"{name}.key"

    def _sign(self, name, extension, *more):
        pem = self.folder / f"{name}.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-addext", extension, "-keyout", self.key(name), "-out", pem, *more], check=True, capture_output=True,
        )  # fmt: skip
        return pem
