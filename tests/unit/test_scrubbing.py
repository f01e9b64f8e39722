"""Secrets are replaced wherever they stand, ordinary words are not, and the time it takes is linear."""

from __future__ import annotations

import base64
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_tasks.transcripts.scrubbing import scrub, scrub_value
from nexus_tasks.transcripts.scrubbing.occurrences import Words
from tests.transcripts import planted

TOKENS = planted.tokens()
IN_CONTEXT = planted.in_context()
CARRIERS = {
    "prose": "I have put {} into the settings, is that all right?",
    "end of a sentence": "The token is {}.",
    "path": "/home/ann/keys/{}/notes.txt",
    "argument": "run --with={} --verbose",
    "underscore": "backup_{}_old",
    "quoted": 'key = "{}"',
    "json text": '{{\\"value\\": \\"{}\\"}}',
    "query": "https://example.org/?q={}&page=2",
    "list": "['a', '{}', 'b']",
    "escaped line break": '{{"text": "first\\\\n{}\\\\nlast"}}',
    "percent": "redirect=https%3A%2F%2Fexample.org%3Ftoken%3D{}%26x",
    "line break": "first\n{}\nlast",
}


@pytest.mark.parametrize("kind", TOKENS)
def test_a_token_is_found_by_its_shape_wherever_it_stands(kind: str) -> None:
    secret = TOKENS[kind]
    for name, carrier in CARRIERS.items():
        found = scrub(carrier.format(secret))
        assert secret not in found, name
        assert secret[12:] not in found, name
        assert "[scrubbed: " in found, name


@pytest.mark.parametrize("name", IN_CONTEXT)
def test_a_secret_is_found_by_what_stands_around_it(name: str) -> None:
    text, secret = IN_CONTEXT[name]
    found = scrub(text)
    assert secret not in found
    assert scrub(found) == found
    for word in ("db.example.org", "theme", "lang", "HttpOnly", "--verbose", "user", "Encrypt=true", "dbname=app"):
        assert (word in found) == (word in text)


@pytest.mark.parametrize("kind", ["github", "anthropic", "aws", "stripe", "jwt"])
@pytest.mark.parametrize("joint", ['" + "', "' '", '" \\\n  "', '\\" + \\"', "\\\n", '" . "', "' + '"])
def test_a_token_that_code_puts_together_is_found(kind: str, joint: str) -> None:
    secret = TOKENS[kind]
    for cut in (3, 8, len(secret) // 2):
        text = f'before = "{secret[:cut]}{joint}{secret[cut:]}" # after'
        found = scrub(text)
        assert secret[cut:] not in found
        assert found.startswith("before")
        assert found.endswith("# after")


UNSEEN = tuple("\u00ad\u034f\u061c\u180e\u200e\u202d\u2061\u2066\ufe0f\U000e0041\x85\r")
LESS_SEEN = (*UNSEEN, "[31m", "\\u202d", "\\udb40\\udc41")  # a colour without its escape character, and escapes of JSON


@pytest.mark.parametrize("kind", ["github", "anthropic", "stripe"])
@pytest.mark.parametrize("sign", LESS_SEEN, ids=ascii)
def test_a_token_that_unseen_characters_split_is_found(kind: str, sign: str) -> None:
    """What gives a memory to an agent removes some of them: the token would be whole again."""
    secret = TOKENS[kind]
    for cut in (3, 9, len(secret) // 2):
        found = scrub(f"before {secret[:cut]}{sign}{secret[cut:]} after")
        assert secret[cut:] not in found
        assert found.startswith("before [scrubbed: ")
        assert found.endswith(" after")


@pytest.mark.parametrize("kind", ["github", "anthropic", "stripe"])
@pytest.mark.parametrize("wrap", ["\n", "\r\n", "\n    ", "\n> ", "\\n"], ids=ascii)
def test_a_token_that_a_line_break_splits_is_found(kind: str, wrap: str) -> None:
    secret = TOKENS[kind]
    for cut in (5, 9, len(secret) - 9):
        found = scrub(f"first\nkey: {secret[:cut]}{wrap}{secret[cut:]}\nlast line")
        assert secret[:cut] not in found
        assert secret[cut:] not in found
        assert found.startswith("first\nkey: [scrubbed: ")
        assert found.endswith("\nlast line")


@pytest.mark.parametrize("kind", ["github", "stripe"])
def test_the_line_behind_a_whole_token_is_kept(kind: str) -> None:
    found = scrub(f"{TOKENS[kind]}\nanother\n{TOKENS[kind]}\n    line")
    assert found.splitlines()[1::2] == ["another", "    line"]


WORD, KEY = "Swordfish!77xq", "wdFcAefAZhnM6Jy8c1rihtYlKNxHddmQAtKCsXRp"
FORMS = {
    "curl over several lines": (f"curl -X POST \\\n  -H 'Accept: a/b' \\\n  -u 'ann:{WORD}' \\\n  https://x.org", WORD),
    "curl --user=": (f"curl --user='ann:{WORD}' https://x.org", WORD),
    "a template of JavaScript": (f"headers: {{ Authorization: `Bearer {KEY}` }}", KEY),
    "folded YAML": (f"password: >-\n  {WORD}\nport: 1", WORD),
    "YAML with an anchor": (f"password: &pw {WORD}", WORD),
    "YAML with a tag": (f"password: !!str {WORD}", WORD),
    "CDATA": (f"<password><![CDATA[{WORD}]]></password>", WORD),
    "aws configure": (f"aws configure set aws_secret_access_key {KEY}", KEY),
    "SetEnv": (f"SetEnv DB_PASS {WORD}", WORD),
    "define of C": (f'#define WIFI_PASS "{WORD}"', WORD),
    "a make variable": (f"TOKEN ?= {KEY}", KEY),
    "a typed variable": (f'let apiKey: String = "{KEY}"', KEY),
    "bytes": (f"connect(password=b'{WORD}')", WORD),
    "German": (f"Das Passwort ist {WORD}.", WORD),
    "German with a colon": (f"Kennwort: {WORD}", WORD),
    "Spanish": (f"Contraseña: {WORD}", WORD),
    "a Spanish sentence": (f"La contraseña es {WORD}.", WORD),
    "French": (f"Mot de passe : {WORD}", WORD),
    "a French sentence": (f"Le mot de passe est {WORD}.", WORD),
    "Portuguese": (f"A senha é {WORD}.", WORD),
    "Russian": (f"Пароль: {WORD}", WORD),
    "Chinese": (f"密码：{WORD}", WORD),
    "a Spanish sentence about a thing": (f"La contraseña del wifi es {WORD}.", WORD),
    "a German sentence about a thing": (f"Das Passwort für den Server lautet jetzt: {WORD}", WORD),
    "a French sentence with a comma": (f"Mon mot de passe, c’est « {WORD} ».", WORD),
    "Russian with a dash": (f"мой пароль — {WORD}", WORD),
    "a Russian sentence about a thing": (f"Пароль от вайфая такой: {WORD}", WORD),
    "a Japanese sentence": (f"私のパスワードは{WORD}です。", WORD),
    "a Japanese sentence with quotes": (f"パスワードは「{WORD}」です", WORD),
    "a Chinese sentence": (f"我的密码是 {WORD}。", WORD),
    "a Korean sentence": (f"비밀번호는 {WORD}입니다", WORD),
    "Japanese": (f"パスワード: {WORD}", WORD),
    "a Dutch sentence about a thing": (f"Het wachtwoord van de server is {WORD}.", WORD),
    "a German word of two": (f"Das WLAN-Passwort heißt {WORD}.", WORD),
    "a Danish sentence": (f"Adgangskoden er {WORD}.", WORD),
    "a Norwegian sentence": (f"Passordet er {WORD}.", WORD),
    "a Finnish sentence": (f"Salasanani on {WORD}.", WORD),
    "a Czech sentence": (f"Moje heslo je {WORD}.", WORD),
    "a Hungarian sentence": (f"A jelszó {WORD}.", WORD),
    "a Romanian sentence": (f"Parola este {WORD}.", WORD),
    "a Serbian sentence": (f"Лозинка је {WORD}.", WORD),
    "a Hebrew sentence": (f"הסיסמה היא {WORD}", WORD),
    "an Arabic sentence": (f"كلمة المرور هي {WORD}", WORD),
    "a Vietnamese sentence": (f"Mật khẩu là {WORD}.", WORD),
    "a Turkish sentence": (f"Şifrem {WORD}.", WORD),
    "a Russian sentence without a verb": (f"Мой пароль {WORD}.", WORD),
    "what Terraform changes": (f'  ~ password = "tulip-farm-9" -> "{WORD}"', WORD),
    "set of fish": (f"set -gx DB_PASSWORD {WORD}1", WORD),
    "ENV of a Dockerfile": (f"FROM a\nENV DB_PASSWORD {WORD}1", WORD),
    "a name of JavaScript": (f'{{"smtpPass": "{WORD}"}}', WORD),
    "an app password in JSON": ('{"password": "mwkh wyeu tmay zgta"}', "mwkh wyeu tmay zgta"),
    "a password that ends with !": ("auth:\n  postgresPassword: Sommer_3520!\n  port: 1\n", "Sommer_3520"),
    "a call of Rust": (f'let api_key = String::from("{KEY}");', KEY),
    "a primary key of Azure": (f"COSMOS_PRIMARY_KEY={KEY}{KEY}Ab12Cd==", f"{KEY}{KEY}"),
    "a primary key of Azure in JSON": (f'{{"primaryMasterKey": "{KEY}{KEY}Ab12Cd=="}}', f"{KEY}{KEY}"),
    "an id and its key": (f"I made a new api key, it is 0297af87-af4b-7532-0b9c-4e6bae00bb37|{KEY}", KEY),
    "a setting in a sentence": (
        "The SHOP_ADMIN_KEY is 18ec00159eda8f6af4ee9f22f0aa172a now.",
        "18ec00159eda8f6af4ee9f22f0aa172a",
    ),
    "a setting to set": (
        "set `SHOP_ADMIN_KEY` to 18ec00159eda8f6af4ee9f22f0aa172a",
        "18ec00159eda8f6af4ee9f22f0aa172a",
    ),
    "YAML with a capital letter": ("auth:\n  adminPassword: Welcome1\n  enabled: true", "Welcome1"),
}


@pytest.mark.parametrize("name", FORMS)
def test_further_forms_are_found(name: str) -> None:
    text, secret = FORMS[name]
    found = scrub(text)
    assert secret not in found
    assert "[scrubbed: " in found
    assert scrub(found) == found


@pytest.mark.parametrize(
    "text",
    [
        "We set password reset as the default.",
        "PASSWORD=${DB_PASSWORD:?missing}",
        "OPENAI_API_KEY=sk-...",
        "cache key f7f2f9714e2b4b12060e6ef06174d54e9019117c missed",
        "golang.org/x/oauth2 v0.11.0 h1:vPL4xzxBM4niKCW6g9whtaWVXTJf1U5e4aZxxFx/gbU=",
        f'{{file = "flask_login-6.0-py3-none-any.whl", hash = "sha256:{"86f8d044" * 8}"}}',
        '{"name":"password class","createdAt":"2026-01-02","etag":"4be14b958c0995c1"}',
        "cargo login\nnow\npassword = getpass.getpass()",
        "cargo login\n/static/js/289.3b3266ab5e27cec03b40.chunk.js",
        "INFO token: request_id=0297af87-af4b-7532-0b9c-4e6bae00bb37 status=356",
        "We released password v2.5.0 yesterday.",
        f"data:image/png;base64,iVBORw0KGgo/sk{'QUJD1' * 40}",
        "az group list -o table -p 5\nhttp -a GET https://x.org\n7z x a.7z -p",
        "Please set token limits first.",
        "Please enable secret scanning4 first.",
        "let token = Token::new(kind);",
        "password: user_name!",
        "  adminPassword: SecretValue\n  userPassword: SecretStr",
        '{"primary_key": "18ec00159eda8f6af4ee9f22f0aa172a"}',
        'connection.getConnection(url, "name", "value");',
        "#define TOKEN_NAME first_value",
        "Die Passwort-Regeln sind streng.",
        "La contraseña es obligatoria.",
        "Пароль должен быть длиннее, а heslo je povinné.",
        "Die Passwörter und die Passwortregeln sind streng.",
        '~ password_hint = "first1" -> "second2"',
        "Mein Passwort lautet wie immer anders, und das ist gut.",
        "Le mot de passe du wifi est affiché sur la porte.",
        "Пароль — от 8 до 20 символов.",
        "パスワードは8文字以上です。",
        "密码是必填项。",
        "see http://a.org/x\nand/more-words",
        "a colour [31m and [0m only",
        "The COMMIT_SHA is 18ec00159eda8f6af4ee9f22f0aa172a now.",
        "The API_KEY_ID is 18ec00159eda8f6af4ee9f22f0aa172a now.",
        "Asia/Oral|LMT +04 +05|-3p.o -40 -50|01232323232323232121212121212121212121212121212",
        "-----BEGIN CERTIFICATE-----\nAQEBBQADggIPADCCAgoCggIBAPkP3aMrfcvQKv7sZ4Wm5y4bunfh4/WvpOz6Sl2R\n"
        "xFdHaxh3a3by/ZPkPQ/CFp4LZsNWlJ4Xg4XOVu/yFv0AYvUiCVToZRdOQbngT0aX\n-----END CERTIFICATE-----",
    ],
)
def test_further_forms_keep_ordinary_words(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    "value",
    [
        {"password": {"value": WORD}},
        {"password": [WORD]},
        {"user": "ann", "pass": WORD},
        {"args": ["login", "--password", WORD]},
        {"command": ["mysql", "-u", "root", f"-p{WORD}"]},
        {"argv": ["curl", "-s", "-u", f"ann:{WORD}"]},
        {"env": [{"name": "DB_PASSWORD", "value": WORD}]},
        {"key": "DB_PASSWORD", "value": WORD},
    ],
    ids=str,
)
def test_the_values_of_a_tool_call_are_scrubbed_by_what_is_beside_them(value: dict[str, object]) -> None:
    found = scrub_value(value)
    assert WORD not in json.dumps(found)
    assert found.keys() == value.keys()
    assert scrub_value(found) == found


def test_ordinary_values_of_a_tool_call_are_kept() -> None:
    value = {
        "args": ["grep", "-n", "token limit", "--color", "README.md"],
        "fields": [{"name": "title", "value": "A plain title"}, {"name": "token_count", "value": 12}],
        "token": {"type": "string", "description": "the token of the user"},
        "passwords": {"minLength": 8},
        "list": ["-1", "2", 3, None],
    }
    assert scrub_value(value) == value


SIGNATURE = (
    "EqoBCkgIARABGAIiQL2UoU0b1OHYi+yCHpBY7U6FQW8/FcoLewocJQPa2HnmLM+NECy50y44F/kD4SULFXi57buI9fAvyBwtyjlOiO0SDE3+"
    "r3spdg6PLOo9PBoMma2ku5OTAoR46j9VIjDRlvNmBvff7YW4WI9oU8XagaOBSxLPxElrhyuxppEn7m6bfT40dqBSTDrfiw4FYB4qEPETTI6TA6wt"
    "jGAAqmFqKTo="
)


@pytest.mark.parametrize(
    "value",
    [
        {"part_kind": "thinking", "content": "hm", "signature": SIGNATURE},
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "reasoning.text", "text": "hm", "signature": SIGNATURE},
        {"part_kind": "text", "provider_details": {"thought_signature": SIGNATURE, "thoughtSignature": SIGNATURE}},
        {"part_kind": "tool-call", "tool_call_id": "tooluse_kZJMlvQmRJ6eAyJE5GIl7Q", "args": "{}"},
    ],
    ids=str,
)
def test_what_a_provider_wants_back_as_it_was_is_kept(value: dict[str, object]) -> None:
    assert scrub_value(value) == value


def test_a_signature_of_something_else_and_a_token_in_one_are_replaced() -> None:
    assert SIGNATURE not in json.dumps(scrub_value({"type": "webhook", "signature": SIGNATURE}))
    token = TOKENS["github"]
    assert token not in json.dumps(scrub_value({"type": "thinking", "signature": token}))


LUCK = random.Random(5)
FILES = {
    "zeros": bytes(3_000),
    "silence": b"RIFF\x24\x20\0\0WAVEfmt " + bytes(5_000),
    "random": LUCK.randbytes(1_000_000),
    "with a gap": LUCK.randbytes(3_000) + bytes(600) + LUCK.randbytes(3_000),
    "with a short gap": LUCK.randbytes(30) + bytes(16) + LUCK.randbytes(3_000),
}


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("file", FILES)
def test_a_file_in_base64_is_kept(file: str, encode: Callable[[bytes], bytes]) -> None:
    text = encode(FILES[file]).decode()
    assert scrub(text) == text
    assert scrub_value({"image_url": f"data:image/png;base64,{text}"}) == {"image_url": f"data:image/png;base64,{text}"}


@pytest.mark.parametrize("kind", TOKENS)
def test_a_token_beside_a_file_is_found(kind: str) -> None:
    file = base64.b64encode(FILES["random"][:3_000]).decode()
    for text in (
        f"{file} {TOKENS[kind]}",
        f"{file}\n{TOKENS[kind]}",
        f"{TOKENS[kind]} {file}",
        f'{{"a": "{file}", "b": "{TOKENS[kind]}"}}',
    ):
        assert TOKENS[kind] not in scrub(text)


@pytest.mark.parametrize("kind", TOKENS)
def test_base64_of_a_secret_is_replaced(kind: str) -> None:
    once = base64.b64encode(f"value: {TOKENS[kind]}\n".encode()).decode()
    twice = base64.b64encode(once.encode()).decode()
    for wrapped in (once, twice, base64.urlsafe_b64encode(once.encode()).decode().rstrip("=")):
        assert wrapped not in scrub(f"data: {wrapped} end")


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
def test_private_keys_are_replaced_whole_or_cut(kind: str) -> None:
    key = planted.private_key(kind)
    lines = key.splitlines()
    forms = {
        "whole": key,
        "escaped": key.replace("\n", "\\n"),
        "escaped twice": json.dumps(json.dumps(key)),
        "without its end": "\n".join(lines[:-2]),
        "without its beginning": "\n".join(lines[3:]),
        "quoted line by line": "\n".join(f'"{line}\\n" +' for line in lines),
        "windows": key.replace("\n", "\r\n"),
    }
    for name, text in forms.items():
        found = scrub(f"some words before\n{text}\nand after it")
        assert not [line for line in lines[1:-1] if line in found], name
        assert found.startswith("some words before"), name
        assert found.endswith("and after it"), name


def test_keys_of_objects_and_nested_texts_are_scrubbed() -> None:
    secret = TOKENS["github"]
    value = {
        secret: {"deep": [secret, {"password": "swordfish", "n": 3, "on": True, "nothing": None}]},
        "api_key": {"value": secret},
        "input": json.dumps({"env": json.dumps({"TOKEN": secret})}),
        f"/tmp/{secret}/x": 1.5,
    }
    found = json.dumps(scrub_value(value))
    assert secret not in found
    assert "swordfish" not in found
    assert json.loads(found)["input"]
    for kept in ('"n": 3', '"on": true', '"nothing": null', "1.5", "deep"):
        assert kept in found


@pytest.mark.parametrize("head", ["id,login,password\n", "id | login | password\n---+-------+---------\n"])
def test_every_row_of_a_long_table_loses_its_password(head: str) -> None:
    sign = "," if "," in head else " | "
    text = head + "".join(f"{n}{sign}user{n}{sign}tulip-meadow\n" for n in range(5_000))
    assert "meadow" not in scrub(text)


@pytest.mark.parametrize("given", ["SESSION_SECRET={}", "deploy --token {} now", "password: {}", 'api_key="{}"'])
@pytest.mark.parametrize("length", [199, 200, 201, 500, 501, 1_500])
def test_of_a_long_secret_no_rest_stays(given: str, length: int) -> None:
    secret = "".join("0123456789abcdef"[n * n * 7 % 13] for n in range(length))
    clean = scrub(given.format(secret) + "\nnext")
    assert secret[-20:] not in clean
    assert clean.endswith("next")
    assert scrub(clean) == clean


PROSE = """
The password must be at least 12 characters. Password: required. Enter your password, then press return.
She kept the secret of the key to the garden: nobody knew it. A token of my appreciation: flowers.
The tokenizer splits text into tokens: about 4 characters each. max_tokens: 2000, total_tokens=35812.
Keys: up, down, left, right. The cookie: chocolate chip. Basic authentication is simple; bearer tokens are not.
See https://example.org/docs/secret-scanning and mailto:ann@example.org or git@github.com:ann/repo.git at 10:30.
commit 9fceb02d0ae598e95dc970b74767f19372d61af8, sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
uuid 550e8400-e29b-41d4-a716-446655440000, the task sk-learn, mask-and-crop, disk-usage-by-user-and-group.
Invalid token: unexpected end of input. Secret: it was the butler. Access key: press Alt. The auth: none.
Author: ann, authority: the court, keyboard: de, monkey: yes, passenger: bob, compass: north, token ring.
"""
CODE = '''
def login(user: str, password: str, *, token: str | None = None, secret: SecretStr = None) -> Session:
    """Log in with a password; the token: see `Session.token`."""
    password = getpass.getpass("Password: ")
    api_key = os.environ["API_KEY"]; token = tokens[0]; secret = get_secret("db/main")
    client = Client(password=password, token=self.token, api_key=settings.api_key)
    if token == "bearer" or password is None: raise InvalidToken("token expired")
    parser.add_argument("--password", help="the password to use")
    const { token, secretKey } = props; this.password = password; let accessToken = await getToken();
    <input type="password" name="password" placeholder="Your password" autocomplete="current-password">
    {"type": "string", "password": {"type": "string", "minLength": 8}, "token_type": "bearer", "expires_in": 3600}
    password_hash = hash_password(password); key_name = "main"; secret_name: db-credentials-v2; token_count = 12345678
    DB_PASSWORD=${DB_PASSWORD} API_KEY=$API_KEY TOKEN=<your-token> SECRET=$(cat /run/secrets/x) PASSWORD_FILE=/run/x
    primary_key=True, foreign_key="users.id", sort_key=lambda one: one.name, cache_key = f"{user}:{page}"
    for key, value in pairs: print(key, value)
'''


@pytest.mark.parametrize("text", [*PROSE.strip().splitlines(), *CODE.strip().splitlines()])
def test_no_ordinary_word_is_lost(text: str) -> None:
    assert scrub(text) == text


def test_our_own_source_and_documents_come_through_whole() -> None:
    """Half a megabyte of code and prose about tokens, keys and secrets."""
    root = Path(__file__).parents[2]
    for path in [*root.glob("nexus_tasks/**/*.py"), *root.glob("docs/*.md"), root / "README.md"]:
        if "scrubbing" in path.parts or path.name in ("coding-agents.md", "secrets.md"):
            continue  # made of the shapes themselves; show one on purpose
        text = path.read_text(encoding="utf-8")
        lost = [pair for pair in zip(text.splitlines(), scrub(text).splitlines(), strict=True) if pair[0] != pair[1]]
        assert lost == [], path


BEGIN, END = "-----BEGIN RSA PRIVATE" + " KEY-----", "-----END RSA PRIVATE" + " KEY-----"
ADVERSARIAL = {
    "begin lines": f"{BEGIN}\n" * 10_000,
    "end lines": f"{END}\n" * 10_000,
    "alternating": f"{BEGIN}\n{END}\n" * 5_000,
    "ends after base64": f"{'QUFB' * 16}\n{END}\n" * 3_000,
    "base64 without breaks": "QUJD" * 75_000,
    "quotes": "\"'" * 150_000,
    "joints": '" + "' * 60_000,
    "backslashes": "\\" * 300_000,
    "escaped quotes": '\\"' * 150_000,
    "colons": "://a:" * 60_000,
    "at signs": "://a:b@" * 40_000,
    "names": "password" * 37_000,
    "names and equals": "token=" * 50_000,
    "names and spaces": "secret = " * 33_000,
    "dashes": "a-" * 150_000,
    "dots": "a." * 150_000,
    "spaces": "authorization" + " " * 300_000,
    "cookies": "cookie: a=b;" * 25_000,
    "curl": "curl -u " * 37_000,
    "bearer": "bearer " * 43_000,
    "eyJ": "eyJ" * 100_000,
    "eyJ.": "eyJaaaaaaaa." * 25_000,
    "sk-": "sk-" * 100_000,
    "letters": "a" * 300_000,
    "zeros": "\0" * 300_000,
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_time_is_linear(name: str) -> None:
    """300 KB take what they take; anything quadratic would take minutes, and the limit is far from either."""
    began = time.process_time()
    scrub(ADVERSARIAL[name])
    assert time.process_time() - began < 60


@pytest.mark.parametrize("sign", [*"!%+-./=_~:;,'\"|(<\\", "a.", "' ", "| "])
def test_a_million_equal_signs_take_no_longer_than_their_number(sign: str) -> None:
    """The test of patterns cannot see a loop that copies the text for each character."""

    def took(length: int) -> float:
        text = (sign * length)[:length]
        began = time.process_time()
        scrub(text)
        return time.process_time() - began

    took(1_000)  # compiles the patterns
    assert took(1_000_000) < max(40 * took(50_000), 2.0)


@given(st.lists(st.text("ab.A", min_size=1, max_size=4)), st.text("ab.A", max_size=60))
def test_words_are_found_by_their_pairs_as_one_by_one(words: list[str], text: str) -> None:
    many = [*words, *(f"z{n}" for n in range(200))]  # so many that the text's pairs are looked at

    assert set(Words(many).within(text)) == {word for word in many if word in text}
    assert set(Words(words).within(text)) == {word for word in words if word in text}


@pytest.mark.parametrize(
    "text",
    [
        "my password is swordfish",
        "The password is tulip.",
        "The password for the wifi is tulip, remember it.",
        "the db password is correcthorsebatterystaple",
        "Our new admin password is 'hunter'",
        "mein Passwort ist Schmetterling",
        "Mein WLAN-Passwort ist Sonnenblume.",
    ],
)
def test_an_ordinary_word_that_a_sentence_tells_as_a_password_is_replaced(text: str) -> None:
    assert re.search("swordfish|tulip|horse|hunter|Schmetter|Sonnen", scrub(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        *(f"My password is {word}" for word in ("wrong", "not", "mandatory", "private", "strange", "forgotten")),
        *(f"the password is {word}." for word in ("expired", "set", "irrelevant", "identical", "stale", "broken")),
        *(f"The admin password is {word}!" for word in ("exclusive", "obvious", "below", "random", "static", "unique")),
        *(f"mein Passwort ist {word}" for word in ("abgelaufen", "falsch", "weg", "vergessen", "Pflicht")),
        "Das Passwort ist zu kurz.",
        "the password is not set",
        "printf(&quot;Password is correct.&quot;);",
    ],
)
def test_what_is_said_about_a_password_stays(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "username: bob\npassword: jIUeSeCrMt!",
        "Admin password: uIkUwUcSLb!",
        "userPassword: bfqjXYwVQz\ncn: bob",
        "smtp://mailer:uIkUwUcSLb?@mail:587",
    ],
)
def test_a_generated_password_of_letters_alone_is_replaced(text: str) -> None:
    assert "[scrubbed: password]" in scrub(text)


@pytest.mark.parametrize("value", ["getUserPassword", "userPassWord", "SecretStr", "Sunshine!", "NewPasswordForm"])
def test_a_name_behind_the_word_password_stays(value: str) -> None:
    assert scrub(f"password: {value}") == f"password: {value}"
