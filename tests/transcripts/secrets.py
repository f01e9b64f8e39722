"""Made-up secrets in the published formats of providers, and other secrets, each in the texts that carry it.

The secrets are drawn at random from the patterns in ``secret_formats.txt``. So no file of the repository has one.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Iterator
from pathlib import Path
from re import _constants as signs  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

_FORMATS = Path(__file__).parent / "secret_formats.txt"
_ALPHABET = string.ascii_letters + string.digits
_RARELY = 40  # the most repetitions of a pattern without a bound


class Planted(NamedTuple):
    """A secret in a text. ``group`` is the kind of its format, ``form`` the kind of the text."""

    group: str
    name: str
    form: str
    text: str
    secret: str


def planted(seed: int = 1) -> list[Planted]:
    """The corpus: each secret in three forms (an assignment, JSON, a sentence)."""
    chance = random.Random(seed)
    return [*_of_providers(chance), *_named(chance), *_in_places(chance)]


# --- formats of providers ---------------------------------------------------------------------------------------------
def _of_providers(chance: random.Random) -> Iterator[Planted]:
    for line in _FORMATS.read_text(encoding="utf-8").splitlines():
        name, _, pattern = line.partition(" ")
        if not pattern or name.startswith("#"):
            continue
        secret = drawn(pattern, chance)
        label = name.rstrip("*").replace("-", " ")
        variable = name.rstrip("*").replace("-", "_").upper()
        variable = f"APP_{variable}" if variable[0].isdigit() else variable
        # A shape is found without a name. A format without a shape needs its name.
        sentence = f"Our {label} is {secret} by the way." if name.endswith("*") else f"Just try {secret} for that call."
        yield Planted("provider", name, "assignment", f"export {variable}={secret}\n", secret)
        yield Planted("provider", name, "json", json.dumps({"id": 7, variable.lower(): secret}), secret)
        yield Planted("provider", name, "prose", sentence, secret)


def drawn(pattern: str, chance: random.Random) -> str:
    """A random text that the regular expression ``pattern`` matches."""
    return "".join(_drawn(part, chance) for part in parser.parse(pattern))


def _drawn(part: Any, chance: random.Random) -> str:
    kind, value = part
    if kind is signs.LITERAL:
        return chr(value)
    if kind is signs.ANY:
        return chance.choice(_ALPHABET)
    if kind is signs.IN:
        return chance.choice(_members(value))
    if kind in (signs.MAX_REPEAT, signs.MIN_REPEAT):
        least, most, inner = value
        times = chance.randint(least, max(least, min(most, least + _RARELY)))
        return "".join(_drawn(one, chance) for _ in range(times) for one in inner)
    if kind is signs.SUBPATTERN:
        return "".join(_drawn(one, chance) for one in value[-1])
    if kind is signs.BRANCH:
        return "".join(_drawn(one, chance) for one in chance.choice(value[1]))
    raise ValueError(f"no text is drawn for {kind}")


def _members(parts: Any) -> str:
    found = ""
    for kind, value in parts:
        if kind is signs.LITERAL:
            found += chr(value)
        elif kind is signs.RANGE:
            found += "".join(map(chr, range(value[0], value[1] + 1)))
        else:  # \w or \d
            found += _ALPHABET if value is signs.CATEGORY_WORD else string.digits
    return found


# --- values that only their names tell --------------------------------------------------------------------------------
_NAMES = (
    "password", "db_password", "DB_PASSWORD", "admin_pass", "MYSQL_ROOT_PASSWORD", "smtp_password", "client_secret",
    "api_key", "apiKey", "API_TOKEN", "access_token", "refreshToken", "secret_key_base", "SECRET_KEY", "jwt_secret",
    "encryption_key", "webhook_secret", "signing_key", "private_token", "auth_token", "passphrase", "session_secret",
    "aws_secret_access_key", "consumer_secret", "bot_token", "deploy_key", "redis_password", "ldap_bind_password",
    "keystore_password", "license_key", "hmac_secret", "service_password", "vault_token", "ftp_passwd", "proxy_pwd",
)  # fmt: skip
_SIGNED = "!@%$#&*^"


def _named(chance: random.Random) -> Iterator[Planted]:
    for name in _NAMES:
        password = any(word in name.lower() for word in ("pass", "pwd"))
        secret = _password(chance) if password else "".join(chance.choices(_ALPHABET, k=chance.randint(20, 40)))
        label = "".join(f" {one.lower()}" if one.isupper() and name[0].islower() else one for one in name)
        label = label.replace("_", " ").lower()
        yield Planted("named", name, "assignment", f"{name}={secret}\n", secret)
        yield Planted("named", name, "json", json.dumps({"user": "ann", name: secret}, indent=2), secret)
        yield Planted("named", name, "prose", f"Hi, the {label} is {secret}, keep it safe.", secret)


def _password(chance: random.Random) -> str:
    """A password as a person makes it: a word, a sign and digits, often with a sign at the beginning."""
    word = "".join(chance.choices(string.ascii_letters, k=chance.randint(5, 9)))
    return f"{chance.choice(['', *_SIGNED[:4]])}{word}{chance.choice('!@#%*')}{chance.randint(10, 9999)}"


# --- secrets that only their places tell ------------------------------------------------------------------------------
def _in_places(chance: random.Random) -> Iterator[Planted]:
    for round_ in range(3):
        word = _password(chance).lstrip(_SIGNED)
        key = "".join(chance.choices(_ALPHABET, k=40))
        for name, (text, secret) in _places(word, key, chance).items():
            yield Planted("place", name, ("assignment", "json", "prose")[round_], _carried(text, round_), secret)


def _carried(text: str, form: int) -> str:
    return (text, json.dumps({"type": "text", "output": text}), f"I ran this yesterday:\n\n{text}\n\nand it worked.")[
        form
    ]


def _places(word: str, key: str, chance: random.Random) -> dict[str, tuple[str, str]]:
    encoded = base64.b64encode(word.encode()).decode()
    pair = base64.b64encode(f"ann:{word}".encode()).decode()
    lines = ["".join(chance.choices(_ALPHABET + "+/", k=64)) for _ in range(6)]
    block = "\n".join(lines)
    begin, end = "-----BEGIN ", "-----END "
    private, static = "OPENSSH PRIVATE" + " KEY-----", "OpenVPN Static" + " key V1-----"
    colour = "\x1b[31m"
    base32 = "".join(chance.choices(string.ascii_uppercase + "234567", k=32))
    encoded_pair = base64.b64encode(f"password={word}\nuser=ann\n".encode()).decode()
    age = "".join(chance.choices("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", k=58))
    split = "gh" + "p_" + key[:10]
    letters = " ".join("".join(chance.choices(string.ascii_lowercase, k=4)) for _ in range(4))
    return {
        "nested yaml": (f"database:\n  credentials:\n    user: ann\n    password: {word}\n    port: 5432", word),
        "yaml under secret": (f"secrets:\n  api_token: {key}\n", key),
        "sign first": (f"DB_PASSWORD=!{word}\nSMTP_PASSWORD=%{word}", word),
        "at first": (f"password: '@{word}'", word),
        "name and value": (json.dumps({"name": "API_TOKEN", "value": key}), key),
        "name and value in yaml": (f"env:\n  - name: DB_PASSWORD\n    value: {word}\n", word),
        "value and name": (json.dumps({"value": word, "name": "DB_PASSWORD"}), word),
        "define": (f"define('DB_PASSWORD', '{word}');", word),
        "xml element": (f"<server><username>ann</username><password>{word}</password></server>", word),
        "xml attribute": (f'<add key="SmtpPassword" value="{word}" />', word),
        "docker auth": (json.dumps({"auths": {"https://registry.example.org": {"auth": pair}}}), pair),
        "kubernetes data": (
            f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\ndata:\n  username: YW5u\n  colour: {encoded}\n",
            encoded,
        ),
        "kubernetes string data": (f"kind: Secret\nstringData:\n  first: {word}\n", word),
        "kubeconfig": (f"users:\n- name: ann\n  user:\n    client-key-data: {key * 3}\n", key * 3),
        "kubeconfig token": (f"users:\n- name: ann\n  user:\n    token: {key}\n", key),
        "terraform output": (
            json.dumps({"db_password": {"sensitive": True, "type": "string", "value": word}}),
            word,
        ),
        "terraform variable": (f'variable "db_password" {{\n  type = string\n  default = "{word}"\n}}', word),
        "curl user": (f"curl -s -u ann:{word} https://example.org/api", word),
        "curl cookie": (f"curl -b 'session={key}' https://example.org/api", key),
        "redis-cli": (f"redis-cli -h cache -a {word} ping", word),
        "mysql": (f"mysql -u root -p{word} shop < dump.sql", word),
        "mysql option": (f"mysqldump --user=root --password={word} shop", word),
        "identified by": (f"CREATE USER 'ann'@'%' IDENTIFIED BY '{word}';", word),
        "with password": (f"ALTER ROLE ann WITH LOGIN PASSWORD '{word}';", word),
        "netrc": (f"machine example.org\n  login ann\n  password {word}\n", word),
        "pgpass": (f"db.example.org:5432:shop:ann:{word}", word),
        "address": (f"amqp://ann:{word}@queue:5672/shop", word),
        "docker login": (f"docker login -u ann -p {word} registry.example.org", word),
        "sshpass": (f"sshpass -p '{word}' ssh ann@example.org", word),
        "header": (f"curl -H 'X-Api-Key: {key}' https://example.org", key),
        "bearer": (f"Authorization: Bearer {key}", key),
        "basic": (f"Authorization: Basic {pair}", pair),
        "base64 of an assignment": (encoded_pair, encoded_pair),
        "aws secret": (f"{'AK' + 'IA'}{''.join(chance.choices(string.ascii_uppercase + '234567', k=16))} {key}", key),
        "aws file": (f"[default]\naws_access_key_id = x\naws_secret_access_key = {key}\n", key),
        "private key": (f"{begin}{private}\n{block}\n{end}{private}", lines[2]),
        "openvpn": (f"{begin}{static}\n{block}\n{end}{static}", lines[2]),
        "putty": (f"PuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: 6\n{block}\nPrivate-MAC: {key}", lines[2]),
        "jwk": (json.dumps({"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1B", "d": key + "abc"}), key + "abc"),
        "age": ("AGE-" + f"SECRET-KEY-1{age}", age),
        "wireguard": (f"[Interface]\nPrivateKey = {key}abc=\nAddress = 10.0.0.2/32", key),
        "colours": (f"{split}{colour}{key[10:36]}", key[10:36]),
        "no width": (f"{split}\u200b{key[10:36]}", key[10:36]),
        "my password is": (f"my password is {word}", word),
        "password for": (f"The password for the staging server is {word}.", word),
        "use as": (f"Use {word} as the password.", word),
        "credentials": (f"the credentials are ann:{word}", word),
        "key in a sentence": (f"here is the api key: {key}", key),
        "passphrase": (f"The passphrase is {word}", word),
        "totp": (f"otpauth://totp/ann?secret={base32}&issuer=shop", base32),
        "npmrc": (f"//registry.example.org/:_authToken={key}", key),
        "gradle": (f"signing.password={word}\nsigning.keyId=24875D73", word),
        "spring": (f"spring.datasource.password={word}", word),
        "connection string": (f"Server=db;Database=shop;User Id=sa;Password={word};Encrypt=true", word),
        "python": (f'client = Client(user="ann", password="{word}")', word),
        "javascript": (f"const apiKey = '{key}';", key),
        "set command": (f"$env:API_TOKEN = '{key}'", key),
        "ansible": (f"ansible_ssh_pass: {word}", word),
        "cisco": (f"username ann privilege 15 password 0 {word}", word),
        "insert with columns": (f"INSERT INTO staff (name, password) VALUES ('bob', 'x'), ('ann', '{word}');", word),
        "insert without columns": (f"INSERT INTO users VALUES (7, 'ann', '{word}');", word),
        "markdown table": (f"| host | password |\n| :-- | --- |\n| db | - |\n| web | {word} |", word),
        "psql table": (f" login | password\n-------+----------\n ann   | {word}\n(1 row)", word),
        "csv": (f"name,password,mail\nann,{word},ann@example.org", word),
        "tsv": (f"name\tpassword\nann\t{word}", word),
        "call": (f"session.login('ann', '{word}')", word),
        "tuple": (f'requests.get(url, auth=("ann", "{word}"))', word),
        "ftp": (f"USER ann\r\n331 which password?\r\nPASS {word}\r\n230 in", word),
        "imap": (f'a1 LOGIN ann "{word}"', word),
        "smtp": (f"AUTH PLAIN {pair}", pair),
        "redis": (f"cache:6379> AUTH ann {word}", word),
        "redis setting": (f"requirepass {word}\nmaxmemory 1gb", word),
        "redis user": (f"ACL SETUSER ann on >{word} ~* +@all", word),
        "base64 over two lines": (f"{encoded_pair[:24]}\n{encoded_pair[24:]}", encoded_pair[24:]),
        "wide letters": (f"ｐａｓｓｗｏｒｄ＝{word}", word),
        "bold letters": (f"𝐩𝐚𝐬𝐬𝐰𝐨𝐫𝐝: {word}", word),
        "chpasswd": (f"echo 'ann:{word}' | sudo chpasswd", word),
        "htpasswd": (f"htpasswd -b /etc/passwords ann {word}", word),
        "net user": (f"net user ann {word} /add", word),
        "net use": (f"net use Z: \\\\srv\\share /user:ann {word}", word),
        "openssl passwd": (f"useradd -p $(openssl passwd -1 {word}) ann", word),
        "enable secret": (f"router(config)#enable secret {word}\nend", word),
        "aws secretsmanager": (f"aws secretsmanager create-secret --name db --secret-string '{word}'", word),
        "jdbc in java": (f'DriverManager.getConnection(url, "ann", "{word}");', word),
        "mysqli": (f"new mysqli('db', 'ann', '{word}', 'app');", word),
        "pdo": (f"new PDO('mysql:host=db;dbname=app', 'ann', '{word}');", word),
        "rabbitmqctl": (f"rabbitmqctl add_user ann {word}", word),
        "freerdp": (f"xfreerdp /v:host /u:ann /p:{word}", word),
        "lftp": (f"lftp -u ann,{word} ftp.example.org", word),
        "sqlplus": (f"sqlplus scott/{word}@shop", word),
        "openssl": (f"openssl enc -aes-256-cbc -k {word} -in plain", word),
        "cqlsh": (f"cqlsh -u ann -p {word} host", word),
        "expect": (f'send "{word}\\r"', word),
        "haproxy": (f"stats auth ann:{word}", word),
        "postfix": (f"[smtp.example.org]:587 ann@example.org:{word}", word),
        "snmp": (f"snmp-server community {word} RO", word),
        "oracle": (f"ALTER USER scott IDENTIFIED BY {word};", word),
        "set password": (f"SET PASSWORD FOR 'ann'@'%' = PASSWORD('{word}');", word),
        "secure string": (f'$p = ConvertTo-SecureString "{word}" -AsPlainText -Force', word),
        "property list": (f"<key>password</key>\n<string>{word}</string>", word),
        "form": (f'Content-Disposition: form-data; name="password"\r\n\r\n{word}\r\n--x', word),
        "answer": (f"What is the password?\nIt's {word}", word),
        "short name": (f"pw: {word}", word),
        "log in as": (f"You can log in as ann with {word}.", word),
        "app password": (f"my app password is {letters}", letters),
        "sudo": (f"echo {word} | sudo -S apt update", word),
        "passin": (f"openssl rsa -in k.pem -passin pass:{word}", word),
        "token option": (f"tool --api-token {key} run", key),
        "signature": (f"https://x.example.org/a?X-Amz-Signature={key}", key),
    }  # fmt: skip
