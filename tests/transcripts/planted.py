"""Secrets of every kind, made up: put together here, so that no file of the repository holds one whole."""

from __future__ import annotations

import base64
import json
import random
import string


def _random(alphabet: str, length: int, seed: str) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


WORD = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"


def _jwt() -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(b'{"sub":"1234567890","name":"ann"}').decode().rstrip("=")
    return f"{head}.{body}.{_random(WORD, 43, 'jwt')}"


def tokens() -> dict[str, str]:
    """Secrets that tell by their shape what they are, by kind."""
    shapes = {
        "anthropic": ("sk-" + "ant-api03-", WORD, 80),
        "openai": ("sk-" + "proj-", WORD, 48),
        "openai-old": ("sk-" + "7", WORD, 47),
        "aws": ("AK" + "IA", UPPER, 16),
        "aws-temporary": ("AS" + "IA", UPPER, 16),
        "github": ("gh" + "p_", WORD, 36),
        "github-app": ("gh" + "s_", WORD, 36),
        "github-fine": ("github" + "_pat_", WORD, 60),
        "gitlab": ("gl" + "pat-", WORD, 20),
        "slack": ("xo" + "xb-1234567890-", WORD, 24),
        "stripe": ("sk" + "_live_", WORD, 24),
        "stripe-restricted": ("rk" + "_live_", WORD, 24),
        "stripe-webhook": ("wh" + "sec_", WORD, 32),
        "google": ("AI" + "za", WORD, 35),
        "google-client": ("GOC" + "SPX-", WORD, 28),
        "google-access": ("ya" + "29.", WORD, 60),
        "digitalocean": ("dop" + "_v1_", HEX, 64),
        "npm": ("np" + "m_", WORD, 36),
        "pypi": ("py" + "pi-AgEIcHlwaS5vcmc", WORD, 80),
        "mailgun": ("ke" + "y-", HEX, 32),
        "twilio": ("S" + "K", HEX, 32),
        "huggingface": ("h" + "f_", WORD, 34),
        "groq": ("gs" + "k_", WORD, 52),
        "databricks": ("da" + "pi", HEX, 32),
        "vault": ("hv" + "s.", WORD, 40),
        "doppler": ("dp" + ".pt.", WORD, 43),
        "linear": ("lin" + "_api_", WORD, 40),
        "notion": ("nt" + "n_", WORD, 46),
        "shopify": ("shp" + "at_", HEX, 32),
        "figma": ("fi" + "gd_", WORD, 40),
        "grafana": ("gl" + "sa_", WORD, 40),
        "supabase": ("sb" + "p_", HEX, 40),
        "docker": ("dckr" + "_pat_", WORD, 27),
        "age": ("AGE-" + "SECRET-KEY-1", UPPER, 58),
        "planetscale": ("psc" + "ale_tkn_", WORD, 43),
        "nexus": ("nexus" + "_0123456789abcdef_", WORD + "_-", 43),
        "telegram": ("123456789" + ":AA", WORD, 33),
        "sendgrid": ("S" + "G.", WORD, 22),
    }
    found = {kind: prefix + _random(alphabet, length, kind) for kind, (prefix, alphabet, length) in shapes.items()}
    found["sendgrid"] += "." + _random(WORD, 43, "sendgrid-2")
    return found | {"jwt": _jwt()}


def private_key(kind: str = "RSA ", lines: int = 12) -> str:
    """A private key in PEM."""
    body = "\n".join(_random(WORD + "+/", 64, f"{kind}{n}") for n in range(lines))
    return f"-----BEGIN {kind}PRIVATE" + f" KEY-----\n{body}\n-----END {kind}PRIVATE" + " KEY-----"


def in_context() -> dict[str, tuple[str, str]]:
    """A text and the secret in it, where only the surroundings say that it is one."""
    secret = _random(WORD, 20, "context") + "7q"
    basic = base64.b64encode(f"ann:{secret}".encode()).decode()
    return {
        "url": (f"psql postgres://ann:{secret}@db.example.org:5432/app", secret),
        "url with an at": (f"redis://:{secret}@x@cache:6379/0", f"{secret}@x"),
        "url with a slash": (f"mysql://root:{secret}/z@db/app", f"{secret}/z"),
        "token as user": (f"git clone https://{secret}@example.org/a/b.git", secret),
        "connection string": (f"Server=db;User Id=sa;Password={secret};Encrypt=true", secret),
        "dsn": (f"host=db user=ann password={secret} dbname=app", secret),
        "azure": (f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={secret * 4}==;", secret * 4),
        "environment": (f"export DB_PASSWORD={secret}\nexport PATH=/bin", secret),
        "a word": ("MYSQL_PWD=swordfish-nine mysqldump app", "swordfish-nine"),
        "quoted environment": (f"AWS_SECRET_ACCESS_KEY='{secret}+/{secret}'", f"{secret}+/{secret}"),
        "dotenv": (f"STRIPE_SECRET={secret}", secret),
        "yaml": (f"database:\n  user: ann\n  password: {secret}\n  port: 5432", secret),
        "yaml word": ("  password: swordfish\n", "swordfish"),
        "json": (json.dumps({"client_secret": secret, "client_id": "web"}), secret),
        "json in json": (json.dumps({"body": json.dumps({"apiKey": secret})}), secret),
        "json in json in json": (json.dumps(json.dumps(json.dumps({"password": secret}))), secret),
        "bearer": (f"curl -H 'Authorization: Bearer {secret}' https://example.org", secret),
        "basic": (f"Authorization: Basic {basic}", basic),
        "header": (f"X-Api-Key: {secret}\nAccept: */*", secret),
        "cookie": (f"Cookie: theme=dark; session={secret}; lang=en", secret),
        "set-cookie": (f"Set-Cookie: sid={secret}; Path=/; HttpOnly", secret),
        "curl": (f"curl -u ann:{secret} https://example.org", secret),
        "curl key": (f"curl -u {secret}: https://example.org", secret),
        "option": (f"deploy --password {secret} --verbose", secret),
        "option with =": (f"deploy --api-key={secret} --verbose", secret),
        "sshpass": (f"sshpass -p {secret} ssh host", secret),
        "plink": (f"plink -pw {secret} ann@host uptime", secret),
        "mc": (f"mc alias set store http://store:9000 ann {secret}", secret),
        "nickserv": (f"/msg NickServ IDENTIFY {secret}", secret),
        "key vault": (f"az keyvault secret set --vault-name kv --name db --value {secret}", secret),
        "docker secret": (f"printf '{secret}' | docker secret create db -", secret),
        "otpauth": (f"otpauth://totp/A:ann?secret={'ZOJGEPAV' * 4}&issuer=A", "ZOJGEPAV" * 4),
        "twine": (f"twine upload -u ann -p {secret} dist/*", secret),
        "az login": (f"az login --service-principal -u app -p {secret} --tenant t", secret),
        "cargo login": (f"cargo login {secret}", secret),
        "vault login": (f"vault login -no-print {secret}", secret),
        "poetry": (f"poetry config http-basic.acme ann {secret}", secret),
        "bundle": (f"bundle config set --global gems.acme.dev ann:{secret}", secret),
        "keytool": (f"keytool -genkey -keystore k.jks -storepass {secret} -alias a", secret),
        "a password on the standard input": (f"echo '{secret}' | docker login -u ann --password-stdin", secret),
        "wrangler": (f"echo {secret} | npx wrangler secret put API", secret),
        "gh auth": (f"gh auth login --with-token <<< {secret}", secret),
        "gh secret": (f"gh secret set DEPLOY --body {secret}", secret),
        "httpie": (f"http -a ann:{secret} GET https://x.org", secret),
        "7z": (f"7z x a.7z -p{secret}", secret),
        "JDBC of Oracle": (f"jdbc:oracle:thin:scott/{secret}@//db:1521/ORCL", secret),
        "netrc": (f"machine example.org login ann password {secret}", secret),
        "npmrc": (f"//registry.example.org/:_authToken={secret}", secret),
        "signed url": (f"https://s3.example.org/a?X-Amz-Signature={secret}&x=1", secret),
        "python": (f'client = Client(api_key="{secret}", timeout=3)', secret),
        "typescript": (f"const apiSecret: string = '{secret}';".replace(": string", ""), secret),
        "ini": (f"[auth]\ntoken = {secret}\nuser = ann", secret),
        "short name": (json.dumps({"user": "ann", "pw": secret}), secret),
        "short name of a database": (f"DBPASS={secret}\nDBUSER=ann", secret),
        "parameter with a path": (json.dumps({"Name": "/prod/db/password", "Value": secret}), secret),
        "patch": (json.dumps({"op": "replace", "path": "/password", "value": secret}), secret),
        "url with a sign of a fragment": (f"rtsp://admin:{secret}#x@10.0.0.7/cam", f"{secret}#x"),
        "address in Go": (f'dsn := "app:{secret}?@tcp(db:3306)/shop"', secret),
        "Czech": (f"heslo: {secret}", secret),
        "Arabic": (f"كلمة المرور: {secret}", secret),
        "bold": (f"- **Password**: {secret}", secret),
        "bold with a colon": (f"**Password:** {secret}", secret),
        "with an account": (f"Password (admin): {secret}", secret),
        "arrow": (f"Password → {secret}", secret),
        "row without a header": (f"| password | {secret} |", secret),
        "recovery codes": ("recovery codes: 25b02-cf7da 63c2f-e5102", "25b02-cf7da 63c2f-e5102"),
        "recovery key": ("BitLocker recovery key: " + "041963-" * 7 + "242811", "041963-" * 7 + "242811"),
        "k3s": ("K10" + "6f57" * 16 + "::server:" + "25e4" * 8, "6f57" * 16 + "::server:" + "25e4" * 8),
        "ipsec": (f'10.0.0.1 10.0.0.2 : PSK "{secret}"', secret),
        "ldap": (f"bindpw {secret}", secret),
        "wpa": (f"wpa_passphrase home {secret} > wpa.conf", secret),
        "net use": (f"net use Z: \\\\srv\\share {secret} /user:ann", secret),
        "steam": (f"steamcmd +login ann {secret} +quit", secret),
        "mysqld": (f"A temporary password is generated for root@localhost: {secret}", secret),
        "elasticsearch": (f"Password for the elastic user (reset with `bin/reset -u elastic`):\n  {secret}", secret),
        "new password of Elasticsearch": (
            f"Password for the [elastic] user successfully reset.\nNew value: {secret}\n",
            secret,
        ),
        "Vault's key": (f"Unseal Key 1: {'Zm9vYmFy' * 5}=\n", "Zm9vYmFy" * 5),
        "Consul's token": (
            "AccessorID:  4d1bb0cf-c0f2-4ec9-1d1a-21b7b1fa6a5f\nSecretID:    63628c30-33fe-49c7-a05c-3abd51a33aa8",
            "63628c30-33fe-49c7-a05c-3abd51a33aa8",
        ),
        "sqlcmd": (f"sqlcmd -S db -U sa -P {secret} -Q 'select 1'", secret),
        "command that a shell repeats": (f"+ mysql -u root '-p{secret}' shop", secret),
        "mask of a runner": (f"::add-mask::{secret}", secret),
        "words of a command": (json.dumps({"command": "x", "args": ["--api-key", secret]}), secret),
        "zip": (f"zip -P {secret} a.zip b", secret),
        "mosquitto": (f"mosquitto_pub -u ann -P {secret} -t a -m b", secret),
        "curl through a proxy": (f"curl --proxy-user ann:{secret} https://example.org", secret),
        "quoted for sqlplus": (f'sqlplus system/"{secret}"@//db:1521/x', secret),
    }
