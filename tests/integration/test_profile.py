"""Profiles: what to know about someone at any time, cited, bounded, the same bytes while memory is the same."""

from __future__ import annotations

import asyncio

import pytest

from nexus_tasks import Nexus
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import InvalidInput, NotFound
from nexus_tasks.services import context_cache
from nexus_tasks.storage import namespaces, perspectives
from nexus_tasks.storage.facts import store
from nexus_tasks.transcripts import context_file
from tests.integration.inline import NAMESPACE, facts, say, work
from tests.integration.test_context import conclude, draft
from tests.integration.test_mcp import call
from tests.sandbox import Sandbox


def know(*made: tuple[str, str], subject: str = "ann", observer: str = "assistant") -> None:
    """Facts of a category about a subject: (category, content)."""
    source = say({"content": "Hello.", "author": subject}, session=f"of {subject}", observers=[])[0]
    with default_deployment().database.transaction() as tx:
        known = namespaces.get(tx, NAMESPACE)
        owner = perspectives.lock(tx, known.id, observer, [subject])
        store(
            tx,
            owner,
            [
                draft(n, source=source, session_id=None, content=content, category=category, subject=subject)  # type: ignore[arg-type]
                for n, (category, content) in enumerate(made)
            ],
        )


def lines(text: str) -> list[str]:
    """The lines without their citations."""
    return [line.partition("] ")[2] for line in text.splitlines() if line.startswith("- ")]


@pytest.fixture
def ann(here: Sandbox) -> Sandbox:
    """A namespace that knows ann and bob."""
    know(
        ("event", "Ann went to the market on Monday."),
        ("opinion", "Ann thinks that it rains too much."),
        ("preference", "Ann likes green tea."),
        ("relationship", "Ann's sister is Clara."),
        ("constraint", "Ann must not eat peanuts."),
    )
    know(("fact", "Bob is a potter."), subject="bob")
    return here


@pytest.mark.usefixtures("ann")
def test_a_profile_tells_what_stays_true_and_what_must_not_be_first() -> None:
    profile = Nexus().profile(NAMESPACE, "ann")
    assert lines(profile.text) == [
        "ann: Ann must not eat peanuts.",
        "ann: Ann's sister is Clara.",
        "ann: Ann likes green tea.",
    ]
    assert set(profile.citations) == {f"m{i}" for i in profile.sections[0].ids}
    assert profile.sections[0].name == "profile"
    assert asyncio.run(Nexus().aprofile(NAMESPACE, "ann")) == profile
    assert Nexus().profile(NAMESPACE, "nobody").text == ""
    assert Nexus().profile(NAMESPACE, "ann", observer="coach").text == ""


def test_it_keeps_its_bound_and_its_bytes(here: Sandbox) -> None:
    know(*(("fact", f"Ann owns violin number {n} of the {n}th maker, a long and costly one.") for n in range(80)))
    profile = Nexus().profile(NAMESPACE, "ann")
    assert 400 < profile.tokens <= 500
    default_deployment().database.dispose()
    assert Nexus().profile(NAMESPACE, "ann") == profile
    for most in (1, 20, 60, 3_000):
        assert Nexus().profile(NAMESPACE, "ann", max_tokens=most).tokens <= most
    know(("event", "Ann went to the market."), ("fact", "Bob is a potter."))
    here.sql("UPDATE memories SET confidence = 0.6 WHERE content LIKE 'Bob%'")
    assert Nexus().profile(NAMESPACE, "ann").text == profile.text


@pytest.mark.usefixtures("here")
def test_conclusions_come_in_and_what_says_the_same_is_told_once() -> None:
    know(("fact", "Ann runs on Mondays."), ("fact", "Ann runs on Tuesdays."), ("fact", "Ann runs on Fridays."))
    with default_deployment().database.transaction() as tx:
        known = namespaces.get(tx, NAMESPACE)
        owner = perspectives.lock(tx, known.id, "assistant", ["ann"])["ann"]
        ids = [fact.id for fact in facts(subject="ann")]
        conclude(tx, owner, "derived", "Ann runs three times a week.", ids)
        conclude(tx, owner, "derived", "Ann runs on Fridays!", ids)
    told = lines(Nexus().profile(NAMESPACE, "ann").text)
    assert "ann: Ann runs three times a week." in told
    assert len([line for line in told if "Fridays" in line]) == 1


@pytest.mark.usefixtures("ann")
def test_a_context_about_someone_begins_with_the_profile_and_says_nothing_twice() -> None:
    for query in (None, "What does Ann like?"):
        block = Nexus().context(NAMESPACE, subject="ann", query=query, max_tokens=400)
        assert block.text.startswith("## Profile\n")
        assert block.sections[0].tokens <= 100
        assert block.text.count("Ann likes green tea.") == 1
        assert "Profile" not in Nexus().context(NAMESPACE, subject="ann", query=query, profile=False).text
        assert "Profile" not in Nexus().context(NAMESPACE, query=query).text


@pytest.mark.usefixtures("ann")
def test_a_session_of_a_coding_agent_and_mcp_begin_with_the_profile_of_the_user() -> None:
    say(*({"content": f"Turn {n}.", "author": "ann"} for n in range(3)), observers=[])
    context_cache.refresh(default_deployment(), NAMESPACE)
    home = str(default_deployment().settings.home)
    cached = context_file.take(home, NAMESPACE)
    assert "## Profile\n" in str(cached)
    assert str(cached).index("must not eat peanuts") < str(cached).index("Bob is a potter")
    assert call("context").structured_content["text"].startswith("## Profile\n")
    assert "must not eat peanuts" in call("profile", subject="ann").structured_content["text"]


def test_a_profile_asks_no_model(here: Sandbox) -> None:
    say("I must not eat peanuts.")
    work("derive_memory")
    [(before,)] = here.sql("SELECT count(*) FROM model_calls")
    assert "peanuts" in Nexus().profile(NAMESPACE, "ann").text
    assert here.sql("SELECT count(*) FROM model_calls") == [(before,)]


@pytest.mark.usefixtures("here")
def test_wrong_arguments_are_named() -> None:
    with pytest.raises(NotFound):
        Nexus().profile("nowhere", "ann")
    Nexus().create_namespace(NAMESPACE)
    for wrong in ({"subject": ""}, {"subject": "ann", "max_tokens": 0}):
        with pytest.raises(InvalidInput):
            Nexus().profile(NAMESPACE, **wrong)  # type: ignore[arg-type]
