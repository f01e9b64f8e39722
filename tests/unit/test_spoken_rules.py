"""Rules of the user for the agent are heard offline, and requests of the moment are not.

The lines were written before the patterns. The patterns were tuned with the lines at even places. The lines at odd
places were held out: their figures say how well the patterns do on lines that they were not made for.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nexus_tasks.llm.answers import PromptLine, SessionFactsMaterial, TopicsMaterial
from nexus_tasks.llm.offline import extract
from nexus_tasks.llm.offline.rules import is_of_the_moment, is_rule

RULES = """
Never mock the database.
Don't summarise what you did at the end.
Always run the linter before you commit.
Use pnpm, not npm.
Please never push to main directly.
Stop adding docstrings to private helpers.
From now on, write commit messages in the imperative mood.
I don't want you to touch the generated files.
No emojis in commit messages, please.
Keep your answers short.
I prefer small pull requests over large ones.
Whenever you change a model, add a migration.
Avoid adding new dependencies.
Ask before you delete anything.
We never deploy on Fridays.
You should always show me the plan first.
Do not use any in TypeScript.
Answer in German, please.
Integration tests must hit a real database, not mocks.
Every time you finish a feature, update the changelog.
I'd rather you ask than guess.
Write tests before the implementation.
Don't ever commit without my approval.
Use British spelling in the docs.
Comments should say why, not what.
In future, use absolute imports.
No, don't use print for debugging, use the logger.
I hate it when you rewrite files that I did not mention.
Prefer composition over inheritance.
We always squash before merging.
Be brief.
Never skip the pre-commit hooks.
Please don't apologise.
When you are unsure, ask me instead of guessing.
Use type hints everywhere.
I want you to always explain the trade-offs.
Tests go in tests/unit, never next to the code.
Make sure to run the whole suite before every push.
Don't create README files unless I ask.
Only use the standard library in the hook.
You must not read the .env file.
We use tabs here, not spaces.
Going forward, name branches after the ticket.
Stop using em dashes.
I don't like long functions.
After each change, run the type checker.
Call me Ann.
Don't add comments that restate the code.
Please always use the test client instead of curl.
Commit messages have at most 72 characters.
Never use force push.
Remember to bump the version in every release.
Speak to me informally.
Don't wrap everything in try/except.
Use conventional commits.
For database changes, always write a down migration.
I like it when you show the failing test first.
Do not refactor code unless I ask for it.
Prefer fixtures to setup methods.
All dates must be in UTC.
You don't need to explain basic Git commands to me.
Never leave TODO comments in the code.
Always use uv instead of pip.
Don't guess at API names, look them up.
""".strip().splitlines()

REQUESTS = """
Now run the migration.
Don't commit yet.
Use the second option.
Can you always see the logs from there?
Stop the server.
Run the tests again.
Don't worry about the warning for now.
Never mind.
Please fix the failing test in the cart.
Show me the diff.
I don't understand this error.
Use port 8081 this time.
Let's do it.
Why do you never use the cache here?
Don't run it yet, I am still editing.
Add a test for the empty cart.
I prefer the first one.
Make it blue.
No, the other file.
Keep going.
Always the same error, look at the log.
Rename the function to load_cart.
The test always fails on CI.
It never worked before.
Don't forget to push this branch when you are done.
Write a test for that.
Skip this test for now.
Stop, that is wrong.
Should I always run make first?
Avoid that line for the moment.
Use this token for the request.
Do it again without the flag.
Ask Ben about the key today.
Now update the changelog.
Delete the old branch.
I want you to fix the login page.
You must have missed the second file.
When you are done, open a pull request.
I never saw this error before.
Before you go on, check the diff.
Don't touch that file right now, Ben is editing it.
Try it with the older version.
We never got an answer from the vendor.
Be careful with this one.
Put the helper in utils.py.
Commit this.
The server never answers on port 80.
Answer the question first.
I'd like to see the log.
Stop here for today.
No tests failed.
I always get a timeout when I open the page.
Is there a rule that you never push?
Use it.
Don't do that.
Make sure the server is running.
Explain this function to me.
You always find a way, thanks!
After that, deploy to staging.
Move the constant to the top of the file.
Only the second test fails.
I like this version.
Keep the old name for now.
Read the README and tell me what it does.
""".strip().splitlines()


def heard(lines: list[str]) -> list[str]:
    return [line for line in lines if is_rule(line)]


@pytest.mark.parametrize(("half", "recall"), [(0, 0.95), (1, 0.80)], ids=["tuned with", "held out"])
def test_rules_are_heard(half: int, recall: float) -> None:
    lines = RULES[half::2]
    missed = [line for line in lines if not is_rule(line)]
    assert len(missed) <= (1 - recall) * len(lines), missed


@pytest.mark.parametrize(("half", "share"), [(0, 0.05), (1, 0.10)], ids=["tuned with", "held out"])
def test_requests_of_the_moment_are_no_rules(half: int, share: float) -> None:
    lines = REQUESTS[half::2]
    assert len(heard(lines)) <= share * len(lines), heard(lines)


@pytest.mark.parametrize(
    "said",
    [
        "Release 2.4 is planned for 12 March.",
        "Log files are in /var/log/shop.",
        "Call centres open at nine, so deploys end at eight.",
        "Ben owns the payments service.",
        "We keep feature flags in LaunchDarkly.",
        "The staging database is at db.staging.example.",
        "Never mock the database.",
    ],
)
def test_what_lasts_is_not_of_the_moment(said: str) -> None:
    assert not is_of_the_moment(said)


@pytest.mark.parametrize(
    "said",
    [
        "Now run the migration.",
        "Check that the server is running.",
        "Show me the diff.",
        "Please fix the failing test in the cart.",
        "CI is red.",
        "I must leave at five.",
        "Ran: pytest -q",
        "Edited /home/ann/shop/cart.py",
        "I've saved that to memory.",
        "Cherry-pick the fix to stable.",
    ],
)
def test_orders_states_and_chatter_are_of_the_moment(said: str) -> None:
    assert is_of_the_moment(said)


def test_there_are_enough_lines_and_each_stands_once() -> None:
    assert min(len(RULES), len(REQUESTS)) >= 60
    assert len(set(RULES + REQUESTS)) == len(RULES) + len(REQUESTS)


def line(text: str) -> PromptLine:
    return PromptLine(id=1, author="ann", role="user", content=text, occurred_at=datetime(2026, 3, 2, tzinfo=UTC))


def test_a_rule_becomes_feedback_and_a_preference() -> None:
    said = (line("Good. Never mock the database. Now run the migration."),)
    [made] = extract.topics(TopicsMaterial(lines=said, known=(), known_from=frozenset())).topics
    assert (made.filename, made.type) == ("feedback.md", "feedback")
    assert made.content == "- Never mock the database. (ann, 2026-03-02)"
    [fact] = extract.facts(SessionFactsMaterial(lines=said, user="ann")).facts
    assert (fact.category, fact.content) == ("preference", "Never mock the database.")
    said = (line("Don't summarise."),)
    assert [one.category for one in extract.facts(SessionFactsMaterial(lines=said, user="ann")).facts] == ["preference"]
