"""The page on HTTP, executed in order: its `curl` commands ask a real server, and print what the page says."""

from __future__ import annotations

import subprocess

from nexus_tasks import Nexus
from nexus_tasks.integrations.http.application import application
from nexus_tasks.services.access import TokenChecker
from tests.integration.http_client import TOKEN
from tests.integration.inline import work
from tests.integration.served import served
from tests.pages import ROOT, blocks
from tests.sandbox import Sandbox

PAGE = ROOT / "docs" / "http.md"


def test_the_page(here: Sandbox) -> None:
    nexus, printed, executed = Nexus(here.deployment), "", 0
    with served(lambda _: application(nexus, TOKEN, checker=TokenChecker(here.deployment))) as port:
        for language, text in blocks(PAGE):
            if language == "text":
                assert printed.splitlines() == text.splitlines()
            elif "nexus serve" not in text:  # the page's own server stands for it
                ran = subprocess.run(
                    ["bash", "-ec", text.replace(":8700", f":{port}").replace("-sS", "-sS --fail-with-body")],
                    env={**here.environment, "NEXUS_HTTP_TOKEN": TOKEN},
                    cwd=here.folder,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                printed, executed = ran.stdout, executed + 1
                assert (ran.returncode == 0) == ("nobody" not in text), ran.stdout + ran.stderr
                work()
    assert executed == 6
    assert nexus.search("copy", "where does ann live?")
