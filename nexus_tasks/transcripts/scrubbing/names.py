"""Tell from the name of a value whether the value is secret: ``db_password`` is, ``password_hint`` is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from nexus_tasks.transcripts.scrubbing.lazy import lazy
from nexus_tasks.transcripts.scrubbing.occurrences import Words, occurrences

# Where one of these stands in a text, a name of a secret may stand.
# "Password" in other languages. Those that begin with "passwor" are in the pattern.
ABROAD = (
    "kennwort", "contraseña", "contrasena", "mot de passe", "mot_de_passe", "senha", "wachtwoord", "lösenord", "hasło",
    "пароль", "密码", "密碼", "パスワード", "비밀번호", "şifre", "parola", "heslo", "salasana", "jelszó", "adgangskode",
    "passord", "лозинка", "הסיסמה", "סיסמה", "كلمة المرور", "mật khẩu",
)  # fmt: skip
_STARTS = Words(("pass", "pswd", "pwd", "secret", "token", "key", "cred", "auth", "psk", "pw", "pepper", *ABROAD))
_WORD = (
    rf"{'|'.join(ABROAD)}|"
    r"pass(?:w(?:or)?d|wort|phrase|code)|pswd|pwd|(?<=[_.-])pass|(?<![A-Za-z])pass(?=[\"'\\]{0,6}\s?[:=])|(?-i:(?<=[a-z])P)ass(?=[\"'\\]{0,6}\s?[:=])|secret|token|key|"
    r"credential|(?<![A-Za-z])creds?(?![a-z])|authtoken|(?<=_)auth|(?<=[\"'])auth(?=[\"'\\])|(?<![A-Za-z])psk(?![a-z])|(?-i:(?<=[a-z])P)sk(?![A-Za-z])|"
    r"(?<=[_.-])pw(?![A-Za-z])|(?-i:(?<=[a-z])P)w(?![A-Za-z])|(?<![A-Za-z0-9])pw(?=[\"'\\]{0,6}\s?[:=])|"
    r"(?:(?<=db)|(?<=user)|(?<=root)|(?<=admin)|(?<=bind))(?:pass|pw)(?=[\"'\\]{0,6}\s?[:=])|(?<=[_.-])pepper|(?-i:(?<=[a-z])P)epper"
)
# The word `key` tells of a secret only behind one of these.
_BEFORE_KEY = lazy(
    r"(?:api|access|account|app|application|private|secret|encryption|encrypt|signing|master|auth|shared|license|service|"
    r"session|storage|deploy|admin|webhook|client|consumer|subscription|integration|ingest|write|read|rest|hmac|cipher|"
    r"crypto|aes|jwt|cookie|security|root|server|vault|unseal|recovery|host|function|ssh|project|pre_?shared)[_-]?\Z",
    re.IGNORECASE,
)
# A token behind one of these is the position in a list, not a secret.
_OPEN_TOKEN = lazy(r"(?:page|pagination|sync|continuation|continue|cursor|resume)[_-]?\Z", re.IGNORECASE)
# Words that make a random value secret, and an ordinary value not.
_RANDOM_WORD = lazy(
    rf"{_WORD}|auth|bearer|jwt|signature|license|cookie|salt|webhook|(?:^|[_.-])(?:pat|sas|dsn|ptt|rrt|oauth|sig|otp|totp|seed)|sessid|(?:^|_)session\Z",
    re.IGNORECASE,
)
# The last part of a name whose value is not the secret itself, such as `token_count` or `password_hint`.
_NOT_ITSELF = lazy(
    r"(?:name|id|ids|type|count|path|file|dir|url|uri|field|length|len|limit|size|ttl|expiry|expires|expires_?(?:in|at)|arn|"
    r"ref|policy|hint|label|prefix|suffix|regex|pattern|format|budget|usage|version|algorithm|alg|rotation|fingerprint|"
    r"sha\d*|md5|digest|checksum|thumbprint|hint|status|state|kind|scope|scopes|index|idx|created|updated|at|on|by|s)\Z",
    re.IGNORECASE,
)
# Names of values that look random and are not secret.
_OPEN = lazy(
    r"(?:sha|md5|hash|digest|checksum|crc|commit|revision|\brev\b|etag|uuid|guid|fingerprint|thumbprint|integrity|public|"
    r"pub_?key|nonce|cache|primary|foreign|sort|partition|idempoten|dedup|lookup|\bgroup|\brow|object|s3_|routing|message|"
    r"trace|span|thought_?sig|request|correlation|cursor|page(?:_|token|\b)|continuation|sync|tokeniz|image|layer|build|version|keyword|keyboard|"
    r"monkey|turkey|hockey|donkey|whiskey|jockey|keyframe|keystore|known_?hosts|host_?key)(?!_?pass)",
    re.IGNORECASE,
)
# A field such as `request_id=…`, which stands in a line of a log behind the name of a logger such as `token:`.
ID_FIELD = lazy(r"(?:request|trace|span|user|job|task|message|correlation|run)_?id=", re.IGNORECASE)
# Providers whose secrets have no shape. A random value that is assigned to such a name is secret.
_PROVIDER = lazy(
    r"adafruit|airtable|algolia|alibaba|alchemy|amplitude|anthropic|artifactory|asana|assemblyai|atlassian|auth0|binance|"
    r"bitbucket|bittrex|braintree|censys|clarifai|cloudflare|codecov|cohere|coinbase|confluence|confluent|contentful|"
    r"datadog|deepgram|deepseek|digitalocean|discord|droneci|dropbox|elasticsearch|elevenlabs|etsy|facebook|fastly|"
    r"finicity|finnhub|firebase|flickr|freshbooks|gitter|gocardless|heroku|hetzner|hubspot|infura|intercom|jfrog|jira|"
    r"klaviyo|kraken|kucoin|launchdarkly|linkedin|linode|looker|mailchimp|mailgun|mailjet|mapbox|mattermost|meilisearch|"
    r"meraki|messagebird|mistral|mixpanel|mongodb|netlify|new_?relic|nytimes|okta|onelogin|openai|openweather|opsgenie|"
    r"pagerduty|paypal|plaid|postmark|privateai|pusher|rapidapi|scaleway|sendbird|sendgrid|sendinblue|sentry|serpapi|"
    r"shodan|shopify|sidekiq|snowflake|snyk|sonar|spotify|squarespace|storyblok|stripe|sumo_?logic|telegram|travis|trello|"
    r"twilio|twitch|twitter|typeform|typesense|upstash|virustotal|vultr|wandb|yandex|zendesk|zerotier",
    re.IGNORECASE,
)


@cache
def _secret_word() -> re.Pattern[str]:
    """The pattern of a word that says that a value is secret, and of the rest of the name behind the word."""
    return re.compile(
        rf"(?P<word>(?i:{_WORD}))(?P<suffix>s?(?:[_.-][\w.-]{{0,40}}|[A-Z][A-Za-z0-9]{{0,40}}|[0-9]{{1,3}})?)"
    )


def secret_words(text: str) -> Iterator[re.Match[str]]:
    """The words in ``text`` that say that a value is secret. Each has the groups ``word`` and ``suffix``."""
    for at in occurrences(text, _STARTS):
        match = _secret_word().match(text, at)
        if match and _counts(match["word"].lower(), text[max(0, at - 16) : at]):
            yield match


def _counts(word: str, before: str) -> bool:
    """Whether ``word`` tells of a secret behind the text ``before``."""
    if word == "key":
        return _BEFORE_KEY().search(before) is not None
    return word != "token" or _OPEN_TOKEN().search(before) is None


def kind_of(word: str, suffix: str) -> str | None:
    """The kind of secret that has this name. ``None`` for a name of another value, such as ``token_count``."""
    last = re.split(r"[_.-]|(?<=[a-z])(?=[A-Z])", suffix)[-1] if suffix else ""
    if last and _NOT_ITSELF().match(last) and not (last == "s" and word.lower().startswith("cred")):
        return None
    word = word.lower()
    if word.startswith(("pass", "pw", "pswd", *ABROAD)):
        return "password"
    return "token" if "token" in word else "key" if word.endswith("key") else "secret"


def names_a_secret(name: str) -> str | None:
    """The kind of secret that a value has which looks random and has this name. ``None`` if it is not secret."""
    last = re.split(r"[_.\s-]|(?<=[a-z])(?=[A-Z])", name)[-1]
    if (_NOT_ITSELF().fullmatch(last) and last.lower() != "s") or _OPEN().search(name):
        return None
    word = _RANDOM_WORD().search(name)
    if word is None:
        return "key" if _PROVIDER().search(name) else None
    found = word[0].lower()
    return "password" if found.startswith(("pass", "pw")) else "token" if "token" in found else "key"
