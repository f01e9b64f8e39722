"""How many secrets are found, and how few ordinary lines are changed: the bounds that the docs promise."""

from __future__ import annotations

import json
import random
import string
import sysconfig
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks.transcripts.scrubbing import places, scrub
from tests.transcripts.planted import in_context
from tests.transcripts.secrets import Planted, planted

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
MOST_PROVIDERS, MOST = 0.90, 0.80  # the smallest shares of secrets that are found
FALSE = 1 / 10_000  # the largest share of ordinary lines that are changed


@cache
def looked_for() -> list[tuple[Planted, bool]]:
    """Each planted secret, and whether it was found."""
    return [(one, one.secret not in scrub(one.text)) for one in planted()]


def share(found: list[bool]) -> float:
    return sum(found) / len(found)


@pytest.mark.parametrize("form", ["assignment", "json", "prose"])
def test_nine_in_ten_formats_of_providers_are_found(form: str) -> None:
    found = [hit for one, hit in looked_for() if one.group == "provider" and one.form == form]
    missed = [one.name for one, hit in looked_for() if one.group == "provider" and one.form == form and not hit]
    assert len(found) > 350
    assert share(found) >= MOST_PROVIDERS, missed


@pytest.mark.parametrize("group", ["provider", "named", "place"])
def test_four_in_five_secrets_of_every_group_and_form_are_found(group: str) -> None:
    for form in ("assignment", "json", "prose"):
        mine = [(one, hit) for one, hit in looked_for() if one.group == group and one.form == form]
        assert share([hit for _, hit in mine]) >= MOST, [one.name for one, hit in mine if not hit]


def test_scrubbing_twice_changes_nothing_more() -> None:
    texts = [scrub(one.text) for one, _ in looked_for()]
    assert [text for text in texts if scrub(text) != text] == []


def test_every_rule_for_commands_and_headers_finds_something() -> None:
    """A rule whose beginning is not where its word stands would never match."""
    texts = [one.text for one in planted()] + [text for text, _ in in_context().values()]
    idle = [
        one.pattern().pattern
        for one in places._credential_patterns()
        if all(places._without_credentials(text, one) == text for text in texts)
    ]
    assert idle == []


# --- ordinary text ----------------------------------------------------------------------------------------------------
def changed(texts: Iterator[str]) -> tuple[int, list[str]]:
    """The number of lines in ``texts``, and the lines that scrubbing changes."""
    lines, lost = 0, list[str]()
    for text in texts:
        before, after = text.split("\n"), scrub(text).split("\n")
        lines += len(before)
        gone = Counter(before) - Counter(after)
        lost += gone.elements()
    return lines, lost


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


@pytest.mark.skipif(not DATA.exists(), reason=f"needs the conversations at {DATA}")
@pytest.mark.parametrize("name", ["locomo", pytest.param("realmem", marks=pytest.mark.long)])
def test_talk_is_kept(name: str) -> None:
    talk = ("\n".join(strings(json.loads(path.read_text("utf-8")))) for path in sorted(DATA.glob(f"{name}/*.json")))
    lines, lost = changed(talk)
    assert lines > 10_000
    # One line has the address of a picture with a signed token in it, which is rightly replaced.
    assert len([line for line in lost if "token=eyJ" not in line]) <= lines * FALSE, lost


@pytest.mark.long
def test_code_is_kept() -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]
    lines, lost = changed(path.read_text("utf-8", errors="replace") for path in paths[::3])
    assert lines > 100_000
    assert len(lost) <= lines * FALSE, lost


def test_logs_are_kept() -> None:
    """Lines of logs with ids, hashes and keys of caches, beside the words that tell of secrets."""
    lines, lost = changed(iter([log(random.Random(5), 10_000)]))
    assert lines >= 10_000
    assert len(lost) <= lines * FALSE, lost[:20]


def log(chance: random.Random, lines: int) -> str:
    def hexadecimal(length: int) -> str:
        return "".join(chance.choices("0123456789abcdef", k=length))

    def mixed(length: int) -> str:
        return "".join(chance.choices(string.ascii_letters + string.digits, k=length))

    def line() -> str:
        id = str(uuid.UUID(int=chance.getrandbits(128)))
        return chance.choice(
            (
                f"2026-11-23T07:12:31.123Z INFO request_id=req_{mixed(24)} GET /v1/tokens/{id} 200 12ms",
                f"[main {hexadecimal(7)}] Fix the token refresh",
                f"commit {hexadecimal(40)}",
                f"sha256:{hexadecimal(64)}: Pulling from library/redis",
                f'etag: "{hexadecimal(32)}"',
                f"trace_id={hexadecimal(32)} span_id={hexadecimal(16)} token count 1234",
                f"pod/api-{hexadecimal(10)}-{hexadecimal(5)} Running",
                f"Task nexus_tasks.derive_memory[{id}] succeeded in 0.12s",
                f"idempotency key nexus:claim:derive:{hexadecimal(64)}",
                f"cache miss key=user:{chance.randint(1, 99_999)}:{hexadecimal(32)}",
                f"downloading https://files.example.org/{hexadecimal(2)}/{hexadecimal(60)}/auth-1.2.3.whl",
                f"assets/token-input.{mixed(8)}.js 12.3 kB",
                f'  "integrity": "sha512-{mixed(86)}==",',
                f"toolu_01{mixed(22)} returned the secret santa list",
                f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{mixed(43)} ann@host",
                f"SHA256:{mixed(43)} ann@host (RSA) key fingerprint",
                f"session {id} opened for user root, auth ok",
                f"next_page_token={mixed(60)}",
                f"public key: {mixed(44)}=",
                f"password check for user {id} passed",
                f"message_key hash:{hexadecimal(64)}:1",
                f"uploaded s3://bucket/{hexadecimal(32)}/secret-garden.txt",
                f"node_modules/.pnpm/jwt-decode@3.1.2_{hexadecimal(32)}/",
                f"workspace wrkspc_01{mixed(22)} and rule rlg_01{mixed(22)}",
                f"PASS src/{hexadecimal(6)}.test.js ({chance.randint(1, 900)} ms)",
                f"apt\tpasswd\t1:4.{chance.randint(1, 99)}+dfsg1-1",
                f"INSERT INTO events VALUES ({chance.randint(1, 999)}, 'click{chance.randint(1, 99)}', '{id}')",
                f"auth = (self.auth[0], '********') if self.auth else {hexadecimal(4)}",
                f"| token count | {chance.randint(1, 10**6)} | {hexadecimal(8)} |",
                f"primary key ({chance.randint(1, 10**15)}) duplicates; key {id}",
            )
        )

    return "\n".join(line() for _ in range(lines))
