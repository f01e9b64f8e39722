"""The API, fuzzed from its own document: no request leads to a status of 500 or more, or to an undescribed answer.

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
from nexus_tasks.integrations.http.application import application
from nexus_tasks.integrations.serving.listening import LOOPBACK
from nexus_tasks.services.access import TokenChecker
from tests.integration.http_client import DOCUMENT, TOKEN
from tests.integration.inline import say, work
from tests.integration.served import served
from tests.pages import ROOT
from tests.sandbox import Sandbox

SECONDS = int(os.environ.get("FUZZ_SECONDS", "60"))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


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
    with served(lambda _: application(nexus, TOKEN, checker=TokenChecker(here.deployment))) as port:
        ran = subprocess.run(
            [
                *(Path(sys.executable).parent / "st", "run", DOCUMENT, "--url", f"http://{LOOPBACK}:{port}"),
                *("--header", f"Authorization: Bearer {token}", "--checks", CHECKS, "--max-time", str(SECONDS // 2)),
                *("--workers", "2", "--request-timeout", "30", "--continue-on-failure", "--no-color"),
                *("--warnings", "off", "--generation-database", "none", "--suppress-health-check", "all"),
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
