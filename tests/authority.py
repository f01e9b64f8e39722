"""A certificate authority of a test's own, and the certificate of a server that is named ``localhost``."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """Files in the format PEM. The certificate names ``localhost``, and no address."""

    root: Path
    certificate: Path
    key: Path


def authority(folder: Path) -> Authority:
    """Make an authority and a certificate in ``folder``, with the command ``openssl``."""
    folder.mkdir(exist_ok=True)
    root, root_key = folder / "ca.pem", folder / "ca.key"
    made = Authority(root, folder / "server.pem", folder / "server.key")
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    _run(*new, "-subj", "/CN=a test", "-keyout", root_key, "-out", root)
    _run(
        *(*new, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-CA", root, "-CAkey", root_key),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-keyout", made.key, "-out", made.certificate),
    )
    made.key.chmod(0o640)
    return made


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
