"""Secrets of no known shape are found in what agents see: code, commands, logs, and sentences in many languages."""

from __future__ import annotations

import pytest

from nexus_tasks.transcripts.scrubbing import scrub

TEXTS = [
    'var ledgerToken string = "{}"',
    'let ledger_token: &str = "{}";',
    "ledgerToken: process.env.LEDGER_TOKEN || '{}',",
    "ENV['LEDGER_TOKEN'] ||= '{}'",
    'ledger_token = os.getenv("LEDGER_TOKEN", "{}")',
    'System.setProperty("ledger.api.key", "{}");',
    'SetLedgerToken("{}")',
    "keyring.set_password('ledger', 'ann', '{}')",
    "ROOT_PW={}",
    "{{'root_pw': '{}', 'n': 1}}",
    "hash_pepper: {}",
    "--ledger-signing-key {}",
    "--ledger-db-password {}",
    "mysql -uroot -p'{}' -h db app",
    "Command '['mysql', '-uroot', '-p{}', 'app']' returned non-zero exit status 1.",
    "plink -pw {} ann@host uptime",
    "mc alias set store http://store:9000 admin {}",
    "printf '{}' | docker secret create db -",
    'echo -n "{}" | gcloud secrets create db --data-file=-',
    "az keyvault secret set --vault-name kv --name db --value {}",
    "ParameterKey=DBPassword,ParameterValue={}",
    'resource "random_password" "db" {{\n    result = "{}"\n}}',
    '["db_password"]=>\n  string(20) "{}"',
    "##[debug]Evaluating: secrets.LEDGER_TOKEN\n##[debug]=> '{}'",
    "api_token\n  String should be short [type=string_too_long, input_value='{}', input_type=str]",
    '<input type="password" name="pw" value="{}">',
    "What's the ledger token? It's {}.",
    "the ledger token (it's {}) goes into the vault",
    "Please use the ledger client secret {} for staging.",
    "I changed the ledger password from {} to a new one",
    "Add LEDGER_PASSWORD with the value {} to the secrets.",
    "you'll need {} for the ledger api key",
    "ann: what's the wifi password?\nbob: {}",
    "Der API-Schlüssel ist {}.",
    "Nimm {} als Passwort.",
    "Zugangsdaten: ann / {}",
    "La clé API est {}",
    "Voici le jeton d'accès : {}",
    "La clave de API es {}",
    "A chave da API é {}",
    "il token di accesso è {}",
    "De API-sleutel is {}",
    "Klucz API to {}",
    "Ключ API: {}",
    "APIキー:{}",
    "密码:{}",
    "API 키: {}",
    "Şifre: {}",
    "Lösenordet är {}.",
    "curl -u {}: https://ledger.example",
    "curl https://ledger.example --user '{}:'",
    'wrangler secret put LEDGER_TOKEN <<< "{}"',
]
VALUES = ["7fKq2Zr9LmXw4TbC", "Kd8wPz3Vn6Rt1Ys5", "qT4xBv7HjM2nLc9f"]

HARMLESS = [
    "Initiator is a token owned by the InstrumentedAttribute that fired.",
    "#define IW_AUTH_CIPHER_AES_CMAC\t0x00000020",
    '#define TLS1_RFC_PSK_WITH_AES_256_CCM_8 "TLS_PSK_WITH_AES_256_CCM_8"',
    "my $pwd = $ftp->pwd;",
    "# The --username and --password options can't be used for",
    "platformdirs/__main__.py,sha256=U5kl02aDkwk9_EO3eaAhUG0foO2Ii6JporkN5DXAhug,2038",
    "curl -X GET -H 'Authorization: [Filtered]' http://127.0.0.1:35245/v1/spend",
    "The API key for the shop is in the vault.",
    "Der API-Schlüssel ist abgelaufen, bitte erneuern.",
    "La clave de API es obligatoria para producción",
    "You'll need Python3.12 for the password prompt.",
    "Set `API_TOKEN` to the value from the dashboard and restart.",
    'token_type string = "bearer"',
    'setToken("token-from-env")',
    "password = None if anonymous else getpass('Password: ')",
    "The primary key is 4711, the sort key is created_at.",
    "First we try to read the username/password from $HOME/.pypirc,",
    "He ate salt and pepper chips: crisps.",
    "except ImportError:\n    pass\nfrom base64 import b64decode",
    "except ImportError:\n    pass\n\nfrom pip._vendor.urllib3.util import IS_PYOPENSSL",
    "We pass to utf8_decoder what we read.",
    'curl -u "$USER:" https://ledger.example',
    "curl -u ann.longname@example.com: https://ledger.example",
    'read -r TOKEN <<< "$(cat file1)"',
    "+token=HTTP_STATUS_404_NOT_FOUND",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_is_found(text: str) -> None:
    for value in VALUES:
        assert value not in scrub(text.format(value)), scrub(text.format(value))


@pytest.mark.parametrize("line", ["+LEDGER_API_KEY={}", "  secret: {}", "LEDGER_API_KEY={}", "token = {}"])
def test_a_value_in_capitals_is_no_constant_if_it_looks_generated(line: str) -> None:
    value = "L89FGCRPIRFLURQ23SH6FWI86LIM9I42DU"
    assert value not in scrub(line.format(value))


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_line_stays(text: str) -> None:
    assert scrub(text) == text


KEY_LINES = ["Rz8kQ1mVb2" * 6 + "Rz8k", "Lw4nT7pXc9" * 6 + "Lw4n", "Hd5jY3sZf6" * 2]


@pytest.mark.parametrize("prefix", ["{:>6}\t", "{:>6}→", "{}: ", "web_1  | ", "> ", "2026-11-29T16:00:00.123Z "])
@pytest.mark.parametrize("part", [slice(0, 3), slice(1, 5), slice(0, 5)])
def test_lines_of_a_private_key_behind_something_are_found_without_its_end(prefix: str, part: slice) -> None:
    """As an agent's tool shows a part of a file."""
    lines = ["-----BEGIN RSA PRIVATE" + " KEY-----", *KEY_LINES, "-----END RSA PRIVATE" + " KEY-----"]
    shown = "\n".join(prefix.format(number) + line for number, line in enumerate(lines, 1) if line in lines[part])
    scrubbed = scrub(f"first line\n{shown}\nlast line")
    assert not any(line in scrubbed for line in KEY_LINES)
    assert scrubbed.startswith("first line\n")
    assert scrubbed.endswith("\nlast line")


def test_lines_after_the_name_of_a_private_key_stay() -> None:
    text = "> -----BEGIN RSA PRIVATE" + " KEY-----\n> is the first line of the key.\n> Then comes base64."
    assert scrub(text).endswith("\n> is the first line of the key.\n> Then comes base64.")


def test_passwords_of_a_table_with_quotes_are_found() -> None:
    """As browsers and password managers export them."""
    table = '"url","Login Name","password","guid"\r\n"https://a.example","ann","tul,""7""ip",""\r\n,bob,"tulip8",\r\n'
    assert scrub(f"Look:\n{table}Bye, all") == (
        'Look:\n"url","Login Name","password","guid"\r\n"https://a.example","ann","[scrubbed: password]",""\r\n'
        ',bob,"[scrubbed: password]",\r\nBye, all'
    )
    other = '"name","count"\n"password","7"\n"user","tulip8"\n'
    assert scrub(other) == other


def test_a_telegram_token_in_an_address_is_found() -> None:
    token = "5533600977:AA" + "h3K9vQ2xL7pR4tY8wZ1nB6mC5dF0gJsDk"
    assert scrub(f"GET https://api.telegram.org/bot{token}/getMe") == (
        "GET https://api.telegram.org/[scrubbed: telegram token]/getMe"
    )


@pytest.mark.parametrize("text", ["codes:\n1. {}\n2. {}\n10) {}", "codes:\n- {}\n- {}\n- {}", "codes are: {}, {}, {}"])
def test_recovery_codes_in_a_list_are_found(text: str) -> None:
    codes = ["8f3a-91bc", "77de-10aa", "5c5c-e2f1"]
    scrubbed = scrub(f"Recovery {text.format(*codes)}\nKeep them.")
    assert not any(code in scrubbed for code in codes)
    assert scrubbed.startswith("Recovery codes")
    assert scrubbed.endswith("\nKeep them.")
