"""An hour of work with a coding agent, written by hand: fifty prompts, with answers, tool calls, errors and noise.

``LASTING`` has what the next session should know, as words that a line about it contains. Everything else of the hour
is of the moment. The offline model's patterns were tuned with this hour. ``OTHER_TURNS`` are of another project, and
were written afterwards. Before any pattern was tuned with them, 7 of the 10 lines about them were worth their tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.transcripts.generate import Transcript

# Each turn: the prompt, the tool calls, and the answer.
Call = tuple[str, str, dict[str, Any]]  # the tool, its result and its input


def _bash(command: str, result: str = "ok") -> Call:
    return ("Bash", result, {"command": command})


def _edit(path: str) -> Call:
    return ("Edit", "The file has been updated.", {"file_path": f"/home/ann/shop/{path}", "old_string": "a"})


def _read(path: str) -> Call:
    return ("Read", "def total(cart): ...", {"file_path": f"/home/ann/shop/{path}"})


PYTEST, RED = _bash("pytest -q", "148 passed in 12.1s"), _bash("pytest -q", "FAILED tests/test_cart.py::test_total")
TURNS: tuple[tuple[str, tuple[Call, ...], str], ...] = (
    ("Please fix the failing test in the cart.", (RED, _read("cart.py")), "I will look at the test first."),
    ("Go on.", (_edit("cart.py"), PYTEST), "The total ignored the discount. All 148 tests pass now."),
    ("Never mock the database in tests.", (), "Understood, I'll use the real database."),
    ("Now run the migration.", (_bash("alembic upgrade head"),), "The migration has run."),
    ("Show me the diff.", (_bash("git diff", "+ return total - discount"),), "Here is the diff."),
    ("Looks good, commit it.", (_bash("git commit -am 'Apply the discount'"),), "Committed as 4f1c9a7."),
    ("We deploy on Tuesdays and Thursdays, never on Fridays.", (), "I've saved that to memory."),
    ("What does load_cart return?", (_read("cart.py"),), "It returns a Cart with its lines."),
    ("Rename it to fetch_cart.", (_edit("cart.py"), _edit("views.py")), "Renamed in three files."),
    ("Run the tests again.", (PYTEST,), "All pass."),
    ("Don't summarise what you did at the end of every answer.", (), "OK."),
    ("Why is the checkout slow?", (_bash("python -m cProfile checkout.py"),), "The N+1 query in orders.py."),
    ("Can you fix that?", (_edit("orders.py"), PYTEST), "Fixed with a join, 40 ms instead of 900 ms."),
    ("We decided to move the payments from Stripe to Adyen in March.", (), "Noted."),
    ("Ben owns the payments service, ask him before changing its API.", (), "I'll ask Ben first."),
    ("Open the payments client.", (_read("payments/client.py"),), "It has 210 lines."),
    ("Hmm, that file is a mess.", (), "I can split it."),
    ("Not today.", (), "OK, leaving it."),
    ("Use pnpm, not npm.", (_bash("pnpm install"),), "Switched to pnpm."),
    ("Start the dev server.", (_bash("pnpm dev", "ready on http://localhost:5173"),), "It runs on port 5173."),
    ("The page is blank.", (_bash("curl -s localhost:5173", "Error: boom"),), "The bundle fails to load."),
    ("Look at the console.", (), "A missing import in App.tsx."),
    ("Fix it.", (_edit("web/App.tsx"),), "Fixed."),
    ("It works now, thanks!", (), "Great."),
    ("The staging database is at db.staging.example, port 6432.", (), "Noted."),
    ("Does CI run on every push?", (_read(".github/workflows/ci.yml"),), "Yes, on every push."),
    ("I prefer small pull requests, one change each.", (), "Understood."),
    ("Split this branch into two.", (_bash("git rebase -i main"),), "Done: cart-discount and rename-cart."),
    ("Push both.", (_bash("git push origin cart-discount rename-cart"),), "Pushed."),
    ("CI is red.", (_bash("gh run view", "mypy: error in orders.py"),), "mypy complains about orders.py."),
    ("Fix the types.", (_edit("orders.py"), _bash("mypy shop", "Success")), "mypy passes."),
    ("Why do you use Any there?", (), "The driver has no types."),
    ("Don't use Any, write a protocol.", (_edit("orders.py"),), "Replaced by a protocol."),
    ("Good. Push it.", (_bash("git push"),), "Pushed."),
    ("Our tracker is Linear, the project is called SHOP.", (), "Noted."),
    ("Create an issue for the N+1 query in the admin.", (_bash("linear issue create"),), "SHOP-214."),
    ("I must leave at five.", (), "OK."),
    ("What is left?", (), "The admin query and the changelog."),
    ("Write the changelog entry.", (_edit("CHANGELOG.md"),), "Written."),
    ("Shorter.", (_edit("CHANGELOG.md"),), "Shortened to one line."),
    ("The release 2.4 is planned for 12 March.", (), "Noted."),
    ("Always update the changelog before a release.", (), "I'll do that."),
    ("Can you check the feature flag?", (_bash("grep -r NEW_CART ."),), "NEW_CART is off in production."),
    ("Leave it off.", (), "OK."),
    ("We keep feature flags in LaunchDarkly, not in the code.", (), "Noted."),
    ("Delete the old one.", (_edit("flags.py"),), "Deleted."),
    ("Run everything one last time.", (PYTEST, _bash("mypy shop")), "All green."),
    ("I'm the only backend engineer, Carla does the frontend.", (), "Good to know."),
    ("Answer in English, even when I write German.", (), "Will do."),
    ("That's it for now, see you tomorrow.", (), "See you!"),
)
LASTING: tuple[str, ...] = (
    "Never mock the database",
    "deploy on Tuesdays and Thursdays",
    "Don't summarise",
    "payments from Stripe to Adyen",
    "Ben owns the payments service",
    "Use pnpm, not npm",
    "db.staging.example",
    "small pull requests",
    "Don't use Any",
    "tracker is Linear",
    "release 2.4",
    "Always update the changelog",
    "feature flags in LaunchDarkly",
    "only backend engineer",
    "Answer in English",
)


OTHER_TURNS: tuple[tuple[str, tuple[Call, ...], str], ...] = (
    ("Hi, have a look at the parser, it drops the last line.", (_read("parser.rs"),), "I see it, an off-by-one."),
    ("Yes please.", (_edit("parser.rs"), _bash("cargo test", "31 passed")), "Fixed, and 31 tests pass."),
    ("Please keep unsafe blocks out of the parser.", (), "Sure."),
    ("How long does the benchmark take?", (_bash("cargo bench"),), "About 40 seconds."),
    ("That's too long. Make it faster.", (_edit("benches/parse.rs"),), "Now it takes 9 seconds."),
    ("The customer is a bank in Zurich, so all logs stay on their servers.", (), "Noted."),
    ("We release from the branch stable, every second Monday.", (), "I've noted the release schedule."),
    ("Cherry-pick the fix to stable.", (_bash("git cherry-pick 4f1c9a7"),), "Done."),
    ("Hm, there is a conflict.", (_bash("git status"),), "Resolved it in parser.rs."),
    ("Dana reviews everything that touches the wire format.", (), "I'll ask her."),
    ("Which version of serde do we use?", (_read("Cargo.toml"),), "1.0.210."),
    ("Upgrade it.", (_bash("cargo update -p serde"),), "It's 1.0.219 now."),
    ("Stop explaining every step, just show the diff.", (), "OK."),
    ("Error messages must never contain customer data.", (), "Understood."),
    ("The fuzzer found a crash.", (_bash("cargo fuzz run parse", "thread panicked"),), "An empty header crashes it."),
    ("Add a regression test first, then fix it.", (_edit("tests/fuzz.rs"),), "Both are in."),
    ("I work from Lisbon, so my mornings are CET minus one.", (), "Good to know."),
    ("Try again with the nightly compiler.", (_bash("cargo +nightly test"),), "It passes there too."),
    ("We agreed with the bank that TLS 1.2 is the minimum.", (), "Noted."),
    ("OK, merge it.", (_bash("gh pr merge"),), "Merged."),
)
OTHER_LASTING: tuple[str, ...] = (
    "unsafe blocks out",
    "bank in Zurich",
    "every second Monday",
    "Dana reviews",
    "Stop explaining",
    "never contain customer data",
    "work from Lisbon",
    "TLS 1.2",
)


@dataclass(frozen=True)
class Event:
    """An event as the agent reports it to the hook, and the transcript as it is by then."""

    name: str
    fields: dict[str, Any]
    transcript: str


def an_hour(made: Transcript, turns: tuple[tuple[str, tuple[Call, ...], str], ...] = TURNS) -> Iterator[Event]:
    """The events of the hour, in order. The transcript grows with them."""
    yield Event("SessionStart", {"source": "startup"}, made.text())
    made.noise()
    for prompt, calls, answer in turns:
        made.prompt(prompt)
        yield Event("UserPromptSubmit", {"prompt": prompt}, made.text())
        for tool, result, given in calls:
            id = made.call(tool, result, error=result.startswith("FAILED"), **given)
            fields = {"tool_name": tool, "tool_input": given, "tool_use_id": id, "tool_response": {"stdout": result}}
            yield Event("PostToolUse", fields, made.text())
        made.answer(answer)
        yield Event("Stop", {}, made.text())
