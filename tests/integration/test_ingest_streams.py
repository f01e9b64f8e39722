"""``nexus ingest`` of streams: the standard input, devices without an end, and lines without an end."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from nexus_tasks import Nexus
from tests.sandbox import Sandbox

MOST = 1_000_000_000  # bytes of address space for data; reading without a limit needs more within seconds


def ingest(here: Sandbox, source: str, stdin: str) -> subprocess.CompletedProcess[str]:
    """`nexus ingest SOURCE` with limited memory, and the output of a shell command as its input."""
    return subprocess.run(
        f"{stdin} | {sys.executable} -m nexus_tasks.cli.entry ingest {source} --namespace acme --session s",
        shell=True,
        env={**here.environment, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MOST, MOST)),
    )


@pytest.mark.long
def test_the_standard_input_is_ingested(here: Sandbox) -> None:
    done = ingest(here, "-", """printf '{"content": "I moved to Lisbon."}\n{"content": "I like it."}\n'""")
    assert done.returncode == 0, done.stderr
    assert "Stored 2 messages" in done.stdout
    assert [one.content for one in Nexus().session("acme", "s").said] == ["I moved to Lisbon.", "I like it."]


@pytest.mark.parametrize(
    ("source", "stdin", "why"),
    [
        ("/dev/zero", "true", "/dev/zero has a line of more than 32 MiB."),
        ("-", "cat /dev/zero", "The standard input has a line of more than 32 MiB."),
        ("-", """yes '{"content": "again"}'""", "The standard input has more than 500,000 lines."),
        ("-", f"""yes '{{"content": "{"a" * 4_000}"}}'""", "The standard input has more than 256 MiB."),
        ("/dev/fd/3", "cat /dev/zero", "/dev/fd/3 has a line of more than 32 MiB."),
    ],
)
def test_a_stream_without_an_end_is_refused(here: Sandbox, source: str, stdin: str, why: str) -> None:
    done = ingest(here, f"{source} 3<&0" if "fd" in source else source, stdin)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert " ".join(done.stderr.split()).startswith(f"error: {why} Nothing was stored.")
    assert list(Nexus().namespaces()) == []
