"""Write the versions and hashes of all packages that the image installs, for ``pip install --require-hashes``.

    python scripts/hashes.py

writes ``requirements-image.txt`` (the package's dependencies with the extras ``flower``, ``http`` and ``mcp``) and
``requirements-build.txt``
(what builds the wheel). pip resolves them for the image's Python on each of its processors, from the registry
that pip is configured for, within ``constraints.txt``. The files hold names, versions and hashes, and no address.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

PYTHON = "3.12"  # of the Dockerfile
PROCESSORS = ("x86_64", "aarch64")
GLIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
ROOT = Path(__file__).parents[1]


def resolve(requirements: list[str], processor: str) -> dict[str, str]:
    """The hash of each package, by ``name==version``."""
    platforms = [part for glibc in GLIBC for part in ("--platform", f"{glibc}_{processor}")]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["--only-binary", ":all:", "--python-version", PYTHON, "--target", "nowhere", *platforms]
    command += ["--constraint", str(ROOT / "constraints.txt"), *requirements]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {
        f"{one['metadata']['name'].lower()}=={one['metadata']['version']}": one["download_info"]["archive_info"][
            "hashes"
        ]["sha256"]
        for one in report["install"]
    }


def write(output: Path, requirements: list[str]) -> None:
    """Write the file for the requirements."""
    hashes: dict[str, set[str]] = defaultdict(set)
    for processor in PROCESSORS:
        for package, sha256 in resolve(requirements, processor).items():
            hashes[package].add(sha256)
    lines = ["# Names, versions and hashes of what the image installs. Written by `make hashes`."]
    for package, found in sorted(hashes.items()):
        lines.append(" \\\n".join([package, *(f"    --hash=sha256:{one}" for one in sorted(found))]))
    output.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Write both files."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = described["project"]
    extras = [one for extra in ("flower", "http", "mcp") for one in project["optional-dependencies"][extra]]
    write(ROOT / "requirements-image.txt", project["dependencies"] + extras)
    write(ROOT / "requirements-build.txt", described["build-system"]["requires"])


if __name__ == "__main__":
    main()
