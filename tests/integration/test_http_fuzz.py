"""The API, fuzzed from its own document: no request leads to a status of 500 or more, to an undescribed
answer, or past the token. The server is ``nexus serve``.

``FUZZ_SECONDS=600 pytest -m long tests/integration/test_http_fuzz.py`` fuzzes for ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nexus_tasks import Nexus
from nexus_tasks.integrations.serving.listening import LOOPBACK
from tests.integration.http_client import DOCUMENT, TOKEN
from tests.integration.inline import say, work
from tests.integration.serve_process import serve_process
from tests.pages import ROOT
from tests.sandbox import Sandbox

SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
# This check takes a request for right when each of its fields is. Some rules are about several fields, or about names.
# The check `use_after_free` is that of fuzz_hooks.py: a dropped job is still shown.
NOT_CHECKED = "positive_data_acceptance,use_after_free"
# What lands must not depend on luck: there the same requests are tried every time, elsewhere new ones.
REQUESTS = ("--generation-deterministic",) if os.environ.get("CI") else ("--generation-database", "none")


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize("who", ["operator", "agent"])
def test_fuzzing_finds_no_fault(deploy: Callable[..., Sandbox], tmp_path: Path, who: str) -> None:
    here = deploy(NEXUS_HTTP_RATE="0")
    nexus = Nexus(here.deployment)
    say("I moved to Lisbon in March.", "I drink green tea every morning.", namespace="acme")
    work()
    scopes = ["read", "write", "erase"]
    token = TOKEN if who == "operator" else nexus.create_token("acme", "agent", scopes=scopes).token  # type: ignore[arg-type]
    with serve_process(here, NEXUS_HTTP_TOKEN=TOKEN) as (_, port):
        ran = subprocess.run(
            [
                *(Path(sys.executable).parent / "st", "run", DOCUMENT, "--url", f"http://{LOOPBACK}:{port}"),
                *("--header", f"Authorization: Bearer {token}", "--max-time", str(SECONDS // 2)),
                *("--checks", "all", "--exclude-checks", NOT_CHECKED),
                *("--workers", "2", "--request-timeout", "30", "--continue-on-failure", "--no-color"),
                *("--warnings", "off", "--suppress-health-check", "all"),
                *REQUESTS,
            ],
            cwd=tmp_path,  # it leaves a cache there
            env={
                **here.environment,
                "HOME": str(tmp_path),
                "PYTHONPATH": str(ROOT),
                "SCHEMATHESIS_HOOKS": "tests.integration.fuzz_hooks",
            },
            capture_output=True,
            text=True,
            timeout=SECONDS + 200,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
