"""The page of memories in a real Chromium, with hostile content in the memories."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from nexus_tasks import Nexus
from nexus_tasks.integrations.serving.listening import LOOPBACK
from tests.integration.inline import NAMESPACE, facts, say, work
from tests.integration.test_browser import browsing

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium")
# Chromium starts no connections of its own with these.
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
    " --disable-component-update"
)
SESSION = "chat/42?x=1#y&<b>"
EVIL = "<img src=x onerror=alert(1)> \u202egnp.exe [m999999] javascript:alert(2)"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("here")]


def missing() -> str:
    """Why no Chromium can be driven here; empty when one can."""
    try:
        import playwright  # noqa: F401
    except ModuleNotFoundError:
        return "Playwright is not installed: `make chromium`."
    return "" if CHROMIUM else "Chromium is not installed: `apt-get install chromium`, or `make chromium` as root."


@contextmanager
def page(*, write: bool = False, dark: bool = False) -> Iterator[Page]:
    """The page, entered by its link. An error of a script, or a dialog of its own, fails the test."""
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    with browsing(write=write) as (client, visit), sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        scheme: Any = "dark" if dark else "light"
        found = chromium.new_page(color_scheme=scheme, bypass_csp=False, viewport={"width": 1100, "height": 800})
        found.on("pageerror", lambda error: faults.append(str(error)))
        found.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        port = client.base_url.port
        found.on("request", lambda asked: None if f"//{LOOPBACK}:{port}/" in asked.url else faults.append(asked.url))
        found.goto(f"http://{LOOPBACK}:{port}/#key={visit.code}")
        found.get_by_role("heading", name="Namespaces").wait_for()
        yield found
        chromium.close()
    assert faults == []


def visit(page: Page, *path: object, query: str = "") -> str:
    """Go to a view, and return the text of the page."""
    hash_ = "/".join(quote(str(part), safe="") for part in ("n", NAMESPACE, *path))
    page.evaluate(
        "hash => { document.querySelector('main').setAttribute('aria-busy', 1); location.hash = hash; }",
        f"#/{hash_}{query}",
    )
    page.locator("main:not([aria-busy])").wait_for()
    return page.locator("main").inner_text()


def tell() -> None:
    """A conversation in which a person changes her mind, and says hostile things."""
    Nexus().create_namespace(NAMESPACE, budget_usd_per_day=1.0)
    said = [
        ("I live in Lisbon.", "2026-04-01T09:00:00Z"),
        ("I like running.", "2026-04-02T09:00:00Z"),
        (EVIL, "2026-05-01T09:00:00Z"),
    ]
    messages = [{"author": "ann", "content": text, "occurred_at": at} for text, at in said]
    Nexus().ingest(NAMESPACE, SESSION, messages, end=True)
    work()


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_view_shows_what_is_stored_and_is_accessible(dark: bool) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tell()
    [lisbon] = [one for one in facts() if "Lisbon" in one.content]
    Nexus().revise(NAMESPACE, lisbon.id, "Ann lives in Porto.")
    views: dict[tuple[object, ...], tuple[str, str]] = {
        ("overview",): ("", "facts"),
        ("sessions",): ("", SESSION),
        ("session", SESSION): ("", "<img src=x onerror=alert(1)> \\u{202e}gnp.exe"),
        ("people",): ("", "ann"),
        ("subject", "ann"): ("", "were valid on"),
        ("memories",): ("?superseded=1", "superseded"),
        ("memory", lisbon.id): ("", "replaced by"),
        ("search",): ("?q=where+does+ann+live", "words (BM25)"),
        ("context",): ("?q=where+does+ann+live&tokens=300", "of 300 tokens"),
        ("ask",): ("?q=where+does+ann+live", "Answered by offline"),
        ("queue",): ("", "derive_memory"),
        ("spend",): ("", "model calls"),
    }
    with page(dark=dark) as found:
        for path, (query, expected) in views.items():
            assert expected in visit(found, *path, query=query), path
            violations = Axe().run(found, options=RULES).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"]) for one in violations] == [], path
            assert found.locator("main img").count() == 0
        assert "There is no memory" in visit(found, "memory", 999_999)
        for unknown in ("nonsense", "__proto__", "constructor"):
            assert "facts" in visit(found, unknown), unknown


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_the_slider_shows_what_was_believed_at_a_time() -> None:
    tell()
    [lisbon] = [one for one in facts() if "Lisbon" in one.content]
    Nexus().revise(NAMESPACE, lisbon.id, "Ann lives in Porto.")
    with page() as found:
        visit(found, "subject", "ann")
        old = found.locator(".line", has_text="I live in Lisbon.")
        assert "past" in (old.get_attribute("class") or "")
        found.get_by_role("slider").press("Home")
        assert "past" not in (old.get_attribute("class") or "")
        assert "later" in (found.locator(".line", has_text="Ann lives in Porto.").get_attribute("class") or "")


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_reader_is_offered_no_change_and_a_writer_gets_a_receipt() -> None:
    tell()
    [lisbon] = [one for one in facts() if "Lisbon" in one.content]
    with page() as found:
        visit(found, "memory", lisbon.id)
        assert found.get_by_role("button", name="Erase").count() == 0
        assert found.get_by_role("button", name="Correct").count() == 0
    with page(write=True) as found:
        visit(found, "memory", lisbon.id)
        found.get_by_role("button", name="Correct").click()
        found.get_by_label("The corrected fact").fill("Ann lives in Porto.")
        found.get_by_role("dialog").get_by_role("button", name="Correct").click()
        found.get_by_text("Ann lives in Porto.").first.wait_for()
        found.get_by_role("button", name="Erase").click()
        box = found.get_by_role("dialog")
        box.get_by_label("to erase it").fill("no")
        box.get_by_role("button", name="Erase").click()
        found.get_by_text("exactly.").wait_for()
        [new] = [one for one in facts() if "Porto" in one.content]
        box.get_by_label("to erase it").fill(f"m{new.id}")
        box.get_by_role("button", name="Erase").click()
        box.get_by_text("The receipt").wait_for()
    assert not [one for one in facts() if "Porto" in one.content]


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_the_keyboard_reaches_everything() -> None:
    say("I live in Lisbon.", end=True)
    work()
    with page() as found:
        found.locator("body").press("Tab")
        assert found.evaluate("document.activeElement.id") == "skip"
        found.keyboard.press("Enter")
        assert found.evaluate("document.activeElement.id") == "main"
        found.keyboard.press("Tab")  # into the table, which scrolls
        found.keyboard.press("Tab")
        found.keyboard.press("Enter")
        found.get_by_role("heading", name=NAMESPACE).wait_for()
        assert found.evaluate("document.activeElement.id") == "main"
