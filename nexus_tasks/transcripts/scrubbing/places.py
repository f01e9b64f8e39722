"""Scrub secrets that are known by their place: in an address, a header or an option, or after a name.

For example, the value after the name ``password`` is replaced. ``shapes.py`` finds secrets of a known shape in any
place. This module finds the secrets that have no known shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from nexus_tasks.transcripts.scrubbing.occurrences import Words, occurrences, whole_end
from nexus_tasks.transcripts.scrubbing.placeholder import MARK, placeholder


# --- addresses: postgres://user:password@host -------------------------------------------------------------------------
@cache
def _authority() -> re.Pattern[str]:
    # A password may contain an unescaped @ or #. The password therefore ends at the last @ before the path.
    return re.compile(r"://([^\s/?#'\"<>@:\\]{0,200}):(?!\d{1,5}#)([^\s/?'\"<>\\]{1,300})@")


@cache
def _databases() -> re.Pattern[str]:
    # In the address of a database or of mail the password may contain a slash or a question mark. In other addresses a
    # slash begins the path.
    return re.compile(
        r"(?i:(?:postgres(?:ql)?|mysql|mariadb|mongodb|redis|rediss|amqps?|mssql|smtps?|imaps?|s?ftps?|ldaps?|mqtts?)"
        r"(?:\+[a-z0-9]{1,20})?)"
        r"://([^\s/?#'\"<>@:\\]{0,200}):([^\s'\"<>@\\]{1,300})@"
    )


@cache
def _without_scheme() -> re.Pattern[str]:
    """The address of a database as Go writes it: user:password@tcp(host:3306)."""
    return re.compile(r"(?<![^\s\"'`=])([\w.-]{1,60}):([^\s\"'`@]{1,200})@(?=(?:tcp|unix)\()")


@cache
def _user_only() -> re.Pattern[str]:
    return re.compile(r"://([A-Za-z0-9_-]{20,300})@")


def scrub_urls(text: str) -> str:
    """``text`` without the passwords in addresses. A user name is also replaced if it looks like a token."""
    if "@tcp(" in text or "@unix(" in text:
        text = _without_scheme().sub(_without_password, text)
    if "://" not in text or "@" not in text:
        return text
    for pattern in (_authority(), _databases()):
        text = pattern.sub(_without_password, text)
    return _user_only().sub(_without_user, text)


def _without_password(match: re.Match[str]) -> str:
    password = match[2]
    # A variable, a template or a mask in place of the password is not secret.
    if (
        MARK in password
        or password.lower() in ("password", "passwd", "pass", "pwd")
        or password.startswith(("$", "{", "%s", "…", "***"))
    ):
        return match[0]
    start = match.start(2) - match.start()
    return f"{match[0][:start]}{placeholder('password')}@"


def _without_user(match: re.Match[str]) -> str:
    user = match[1]
    return f"://{placeholder('token')}@" if any(map(str.isdigit, user)) and any(map(str.isalpha, user)) else match[0]


# --- headers, cookies and options of commands: Authorization, curl -u, --password -------------------------------------
_COOKIE_ATTRIBUTES = ("path", "domain", "expires", "max-age", "samesite", "version", "priority")


class _Credential(NamedTuple):
    """A kind of credential: words of which one begins it, and the pattern of the whole."""

    kind: str
    starts: tuple[str, ...]
    words: Words  # the same
    pattern: Callable[[], re.Pattern[str]]


@cache
def _credential_patterns() -> tuple[_Credential, ...]:
    quote = r"\\{0,4}[\"'`]?"
    line = r"(?:\r?\n|(?:\\{1,4}r)?\\{1,4}n)"  # a line break, which may be escaped
    rules = (
        (
            "authorization",
            ("authorization",),
            rf"(?i:authorization){quote}\s{{0,4}}[:=]\s{{0,4}}{quote}"
            r"(?i:(?:bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)\s{1,4})?"
            r"(?!(?i:bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)\s)([^\s\"',;\\]{6,})",
        ),
        (
            "bearer token",
            ("bearer",),
            r"(?i:bearer)\s{1,4}(?=[A-Za-z._~+/-]{0,200}[0-9])([A-Za-z0-9._~+/-]{16,}={0,2})",
        ),
        ("basic credentials", ("basic",), r"\bBasic\s{1,4}(?=[A-Za-z0-9+/]{0,200}[0-9A-Z=])([A-Za-z0-9+/]{12,}={1,2})"),
        (
            "password",
            ("curl",),
            rf"(?:\bcurl\b(?:[^\n|;]|(?<=\\)\n){{0,300}}?\s(?:-u|--user|-U|--proxy-user)[\s=]{{0,3}}){quote}[^\s:\"'\\]{{1,100}}:([^\s\"'\\]{{1,200}})",
        ),
        # A key in the place of the user, with no password, as Stripe and others take it.
        (
            "key",
            ("curl",),
            rf"(?:\bcurl\b(?:[^\n|;]|(?<=\\)\n){{0,300}}?\s(?:-u|--user)[\s=]{{0,3}}){quote}(?=[^\s:]{{0,100}}[0-9])([\w.+/=-]{{16,200}}):(?=[\s\"'`\\]|\Z)",
        ),
        (
            "cookie",
            ("curl",),
            rf"(?:\bcurl\b(?:[^\n|;]|(?<=\\)\n){{0,300}}?\s(?:-b|--cookie)[\s=]{{0,3}}){quote}[\w.-]{{1,60}}=([^\s\"'\\]{{4,4000}})",
        ),
        (
            "password",
            ("redis-cli",),
            rf"\bredis-cli\b[^\n|;]{{0,200}}?\s(?:-a|--pass)\s{{1,3}}{quote}([^\s\"'\\]{{3,200}})",
        ),
        (
            "password",
            (
                "docker",
                "podman",
                "helm",
                "mongo",
                "ldap",
                "sqlcmd",
                "unzip",
                "htpasswd",
                "smbclient",
                "cqlsh",
                "beeline",
                "isql",
                "rdesktop",
                "zip -",
                "ipmitool",
                "mosquitto_",
                "hydra",
                "crackmapexec",
                "netexec",
                "evil-winrm",
                "cypher-shell",
                "ncftp",
                "security ",
            ),
            rf"\b(?:docker|podman|helm|az|oc|mongosh?|mongodump|mongorestore|cqlsh|beeline|isql|rdesktop|ldap\w{{1,10}}|sqlcmd|unzip|zip|7z|htpasswd|smbclient|"
            r"ipmitool|mosquitto_[a-z]{3}|hydra|crackmapexec|netexec|evil-winrm|cypher-shell|ncftp\w{0,4}|security)\b"
            rf"[^\n|;]{{0,200}}?\s(?:-p|-P|-w|-U\s{{0,2}}[\w.]{{1,40}}%)\s{{0,3}}{quote}(?=[^\s]{{0,100}}[0-9!@#%^&*])([^\s\"'\\:/]{{6,200}})(?=\s|[\"'\\]|\Z)",
        ),
        (
            "password",
            ("identified", "with", "login", "encrypted", "role", "user"),
            r"(?i:\bidentified\s{1,4}(?:with\s{1,4}\S{1,40}\s{1,4})?by(?:\s{1,4}password)?|\b(?:with|login|encrypted|role|user)\s{1,4}password)"
            r"\s{1,4}\\{0,4}[\"']([^\s\"'\\]{3,200})",
        ),
        # login("ann", "…"), HTTPBasicAuth('ann', '…'), auth=("ann", "…")
        (
            "password",
            ("login", "log_in", "logon", "signin", "sign_in", "auth", "credential"),
            r"(?i:log_?in|logon|sign_?in|authenticate|basic_?auth|auth(?:entication)?|credentials?)\w{0,20}\s{0,2}=?\s{0,2}\("
            r"\s{0,4}[^,()\n]{1,100},\s{0,4}\\{0,6}[\"'](?=[^\"'\s]{0,100}[0-9!@#%^&*])([^\s\"'\\]{4,200})\\{0,6}[\"']",
        ),
        # getConnection(url, "ann", "…"), new mysqli('db', 'ann', '…'), new PDO('mysql:host=db', 'ann', '…')
        (
            "password",
            ("getconnection", "mysqli", "pdo("),
            r"(?i:getConnection|mysqli(?:_connect)?|\bPDO)\s{0,2}\([^()\n]{1,200}?,\s{0,4}\\{0,6}[\"'][\w.@-]{1,60}\\{0,6}[\"'],"
            r"\s{0,4}\\{0,6}[\"'](?=[^\"'\s]{0,100}[0-9!@#%^&*])([^\s\"'\\]{4,200})\\{0,6}[\"']",
        ),
        (
            "password",
            ("identified",),
            r"(?i:\bidentified\s{1,4}by)\s{1,4}(?=[^\s;]{0,100}[0-9!@#%^&*])([^\s\"'`;,\\]{4,200})",
        ),
        (
            "password",
            ("password(",),
            r"(?:PASSWORD|(?<== )password|(?<==)password)\(\\{0,4}[\"'](?=[^\s]{0,100}[0-9!@#%^&*])([^\s\"'\\]{4,200})",
        ),
        # FTP and POP3; IMAP; SMTP; Redis
        (
            "password",
            ("user ",),
            rf"\bUSER\s{{1,4}}[^\s\\]{{1,80}}(?:{line}[^\n\\]{{0,100}}){{0,3}}{line}[^\nA-Za-z\\]{{0,20}}PASS\s{{1,4}}([^\s\\]{{3,200}})",
        ),
        (
            "password",
            ("login ",),
            r"\bLOGIN\s{1,4}[^\s\\]{1,80}\s{1,4}\\{0,4}\"([^\s\"\\]{3,200})\\{0,4}\"",
        ),
        (
            "basic credentials",
            ("auth ",),
            r"\bAUTH\s{1,4}(?:PLAIN|LOGIN)\s{1,4}([A-Za-z0-9+/]{8,400}={0,2})(?![A-Za-z0-9])",
        ),
        (
            "password",
            ("> auth ",),
            r"> AUTH\s{1,4}(?:[\w.@-]{1,60}\s{1,4})?(?=[^\s]{0,100}[0-9!@#%^&*])([^\s\"'\\]{5,200})",
        ),
        (
            "password",
            ("requirepass", "masterauth", "bindpw", "rootpw", "auth_pass", "serverpassword"),
            r"\b(?:requirepass|masterauth|bindpw|rootpw|auth_pass|ServerPassword)\s{1,4}\\{0,4}[\"']?(?=[^\s]{0,100}[0-9!@#%^&*])([^\s\"'\\]{4,200})",
        ),
        ("password", ("acl setuser",), r"(?i:acl setuser)\s[^\n>\\]{0,100}>([^\s\"'\\]{3,200})"),
        # other commands and settings
        (
            "password",
            ("echo ", "printf "),
            r"\b(?:echo|printf)\s{1,4}\\{0,4}[\"']?[\w.-]{1,60}:([^\s\"'\\|]{4,100})\\{0,4}[\"']?\s{0,4}\|\s{0,4}(?:sudo\s{1,4})?chpasswd\b",
        ),
        (
            "password",
            ("htpasswd ",),
            r"\bhtpasswd\s{1,4}-[A-Za-z]{0,5}b[A-Za-z]{0,5}\s{1,4}\S{1,200}\s{1,4}\S{1,60}\s{1,4}([^\s\"'\\]{3,200})",
        ),
        ("password", ("net user ",), r"(?i:net user)\s{1,4}\S{1,60}\s{1,4}([^\s/*\"'\\][^\s\"'\\]{3,200})(?=\s)"),
        (
            "password",
            ("net use ",),
            rf"(?i:net use)\s[^\n|;]{{1,200}}?/user:\S{{1,60}}[ \t]{{1,4}}{quote}"
            r"(?=[^\s]{0,100}[0-9!@#%^&*])([^\s/*\"'\\][^\s\"'\\]{3,200})",
        ),
        (
            "password",
            ("enable secret ",),
            r"(?<!\w )\benable secret[ \t]{1,4}(?=[^\s]{0,100}[0-9!@#%^&*])([^\s\"'\\]{4,200})",
        ),
        (
            "password",
            ("rabbitmqctl",),
            r"\brabbitmqctl\s[^\n|;]{0,60}?(?:add_user|change_password)\s{1,4}\S{1,60}\s{1,4}\\{0,4}[\"']?([^\s\"'\\]{3,200})",
        ),
        ("password", ("freerdp",), r"freerdp[^\n|;]{0,200}?\s/p:\\{0,4}[\"']?([^\s\"'\\]{3,200})"),
        ("password", ("lftp ", "lftp\t"), r"\blftp\s[^\n|;]{0,100}?-u\s{1,4}[^\s,]{1,60},([^\s\"'\\]{3,200})"),
        (
            "password",
            ("sqlplus ", "expdp ", "impdp "),
            r"\b(?:sqlplus|expdp|impdp)\s{1,4}(?:-\w{1,3}\s{1,4})?[\w.]{1,60}/\\{0,4}\"?([^\s\"'\\/@]{3,200})\\{0,4}\"?@",
        ),
        (
            "password",
            ("openssl passwd",),
            rf"\bopenssl passwd(?:[ \t]{{1,4}}-(?:1|5|6|apr1|crypt|salt\s{{1,4}}\S{{1,30}})){{0,3}}[ \t]{{1,4}}{quote}"
            r"(?=[^\s]{0,100}[0-9!@#%^&*])([^\s\"'\\()-][^\s\"'\\()]{3,200})",
        ),
        ("secret", ("secret-string",), rf"(?<=--)secret-string[= ]{{1,3}}{quote}([^\s\"'\\${{<][^\s\"'\\]{{3,200}})"),
        ("password", ("openssl enc",), r"\bopenssl enc\b[^\n|;]{0,200}?\s-k\s{1,4}\\{0,4}[\"']?([^\s\"'\\]{3,200})"),
        (
            "password",
            ("send ",),
            r"\bsend\s{1,4}(?:--\s{1,4})?\\{0,4}\"(?=[^\s]{0,100}[0-9!@#%^&*])([^\s\"\\$]{4,100})\\{1,4}[rn]",
        ),
        ("password", ("stats auth",), r"\bstats auth\s{1,4}[\w.-]{1,60}:([^\s\"'\\]{3,200})"),
        (
            "password",
            ("]:",),
            r"\]:[0-9]{2,5}[ \t]{1,8}[^\s:@]{1,80}(?:@[\w.-]{1,80})?:([^\s\"'\\]{3,200})(?=[\s\"'\\]|\Z)",
        ),
        (
            "snmp community",
            ("snmp-server community",),
            r"snmp-server community\s{1,4}(?!public\b|private\b)([^\s\"'\\]{4,100})",
        ),
        ("password", ("password ", "secret "), r"\b(?i:password|secret)\s{1,4}[05789]\s{1,4}([^\s\"'\\]{4,200})"),
        ("password", ("-pass",), r"(?<=\s)-pass(?:in|out)?\s{1,4}\\{0,4}[\"']?pass:([^\s\"'\\]{3,200})"),
        (
            "password",
            ("echo ",),
            r"\becho\s{1,4}\\{0,4}[\"']?([^\s\"'\\|]{4,100})\\{0,4}[\"']?\s{0,4}\|\s{0,4}sudo\s{1,4}-S\b",
        ),
        (
            "password",
            ("convertto-securestring",),
            r"(?i:ConvertTo-SecureString)(?:\s{1,4}-String)?\s{1,4}\\{0,4}[\"']([^\s\"'\\]{3,200})",
        ),
        ("password", ("sshpass",), r"\bsshpass\s{1,4}-p\s{0,3}\\{0,4}[\"']?([^\s\"'\\]{1,200})"),
        (
            "password",
            ("mysql",),
            rf"\bmysql(?:dump|admin)?\b[^\n|;]{{0,200}}?(?:\s['\"]?|['\"], ['\"])-p{quote}"
            r"([^\s\"'\\-][^\s\"'\\]{2,200})",
        ),
        (
            "password",
            ("--",),
            r"(?<!\S)--(?:[a-z]{1,20}-){0,3}(?:password|passwd|passphrase|pass)[= ]"
            r"(?!(?:options?|flags?|arguments?|and|or|is|to|for|in|with|if|on|the|from|was|can|must)\b)"
            r"\\{0,4}[\"']?([^\s\"'\\$<-][^\s\"'\\]{3,200})",
        ),
        (
            "token",
            ("--",),
            r"(?<!\S)--(?:[a-z]{1,20}-){0,3}"
            r"(?:token|secret|credential|"
            r"(?:api|access|secret|signing|private|encryption|master|auth|license|shared)-?key)[= ]"
            r"\\{0,4}[\"']?(?=[^\s]{0,200}[0-9!@#%^&*])([^\s\"'\\$<-][^\s\"'\\]{7,200})",
        ),
        ("password", ("login",), r"\blogin\s{1,8}[^\s|]{1,100}\s{1,8}password\s{1,8}(?![=:]\s)(\S{1,200})"),
        ("secret", ("otpauth://",), r"\botpauth://[^\s\"'<>]{1,300}?[?&]secret=([A-Za-z2-7]{16,200})"),
        # options and arguments of some commands
        (
            "password",
            ("twine ", "az ", "oc ", "rabbitmqadmin "),
            rf"\b(?:twine upload|az login|oc login|rabbitmqadmin)\b[^\n|;]{{0,200}}?\s-p[ \t]{{1,3}}{quote}"
            r"(?=[^\s]{0,100}[0-9!@#%^&*])([^\s\"'\\-][^\s\"'\\]{3,200})",
        ),
        (
            "token",
            ("cargo login", "vault login", "wandb login"),
            rf"\b(?:cargo|vault|wandb) login[ \t]{{1,3}}(?:-\S{{1,60}}[ \t]{{1,3}}){{0,3}}{quote}"
            r"(?=[^\s]{0,200}[0-9])([^\s\"'\\=-][^\s\"'\\=]{9,200})",
        ),
        (
            "password",
            ("poetry config",),
            rf"\bpoetry config[ \t]{{1,3}}(?:http-basic\.\S{{1,60}}[ \t]{{1,3}}\S{{1,60}}|pypi-token\.\S{{1,60}})"
            rf"[ \t]{{1,3}}{quote}"
            r"([^\s\"'\\]{3,300})",
        ),
        (
            "password",
            ("bundle config",),
            rf"\bbundle config\s[^\n|;]{{0,100}}?\s{quote}[\w.@-]{{1,60}}:(?!//)([^\s\"'\\]{{3,200}})(?=[\s\"'\\]|\Z)",
        ),
        (
            "password",
            ("-storepass", "-keypass", "-srcstorepass", "-deststorepass"),
            rf"(?<=\s)-(?:(?:src|dest)?storepass|(?:src|dest)?keypass)[ \t]{{1,3}}{quote}([^\s\"'\\]{{3,200}})",
        ),
        (
            "password",
            ("echo ", "printf "),
            r"\b(?:echo|printf)[ \t]{1,4}(?:-[ne]{1,2}[ \t]{1,4})?\\{0,4}[\"']?([^\s\"'\\|]{4,300})\\{0,4}[\"']?"
            r"\s{0,4}\|\s{0,4}(?:[^\n|;]{0,200}?--(?:password|token)-stdin|"
            r"(?:docker|podman) secret create|vercel env add|"
            r"(?:kinit|passwd|gcloud secrets|cryptsetup)\b|"
            r"[^\n|;]{0,40}?\bwrangler secret put|gh auth login --with-token)\b",
        ),
        (
            "token",
            ("gh auth", "gh secret"),
            rf"\bgh (?:auth login\b[^\n|;]{{0,60}}?--with-token\s{{0,3}}<<<|"
            rf"secret set\b[^\n|;]{{0,100}}?\s(?:-b|--body)[\s=])\s{{0,3}}{quote}"
            r"([^\s\"'\\]{4,300})",
        ),
        (
            "password",
            ("http ", "https "),
            rf"\bhttps?\s[^\n|;]{{0,100}}?(?<=\s)(?:-a|--auth)[\s=]{{1,3}}{quote}[^\s:\"'\\/]{{1,100}}:(?!//)([^\s\"'\\]{{3,200}})",
        ),
        (
            "password",
            ("plink ", "pscp ", "putty ", "mqtt "),
            rf"\b(?:plink|pscp|putty|mqtt)\s[^\n|;]{{0,100}}?-pw[ \t]{{1,3}}{quote}([^\s\"'\\]{{3,200}})",
        ),
        (
            "password",
            ("mc alias set", "mc config host"),
            rf"\bmc (?:alias set|config host add)[ \t]{{1,3}}\S{{1,60}}[ \t]{{1,3}}\S{{1,200}}[ \t]{{1,3}}"
            rf"\S{{1,60}}[ \t]{{1,3}}{quote}([^\s\"'\\]{{3,200}})",
        ),
        ("password", ("nickserv identify",), r"(?i:nickserv identify)[ \t]{1,3}([^\s\"'\\]{4,200})"),
        (
            "password",
            ("az keyvault secret set", "ssm put-parameter", "create-secret"),
            rf"\b(?:az keyvault secret set|ssm put-parameter|secretsmanager create-secret)\b"
            rf"[^\n|;]{{0,200}}?--(?:value|secret-string)[= ]{quote}([^\s\"'\\]{{4,300}})",
        ),
        ("password", ("psk ", "eap "), r"\b(?:PSK|EAP)\s{1,4}\\{0,4}\"([^\s\"\\]{4,200})\\{0,4}\""),
        (
            "password",
            ("wpa_passphrase ",),
            rf"\bwpa_passphrase[ \t]{{1,3}}\S{{1,60}}[ \t]{{1,3}}{quote}([^\s\"'\\]{{8,63}})",
        ),
        (
            "password",
            ("net use ",),
            r"(?i:net use)[ \t]{1,3}(?:[A-Za-z*]:?[ \t]{1,3})?\\{2,8}[^\s]{1,100}[ \t]{1,3}"
            r"(?!/)([^\s\"'*\\]{4,200})(?=[ \t]{1,3}/user)",
        ),
        ("password", ("+login ",), r"\+login[ \t]{1,3}\S{1,60}[ \t]{1,3}(?![+-])([^\s\"'\\]{4,200})"),
        # what programs print: mysqld --initialize, elasticsearch-reset-password, GitHub's runner
        (
            "password",
            ("temporary password",),
            r"temporary password is generated for [^\s:]{1,100}: ([^\s\"'\\]{4,200})",
        ),
        (
            "password",
            ("password for the ",),
            rf"(?i:password for the) \[?\w{{1,40}}\]? user \([^()\n]{{1,200}}\):(?:\s|{line}){{1,8}}"
            r"([^\s\"'\\]{6,200})",
        ),
        (
            "password",
            ("successfully reset",),
            rf"(?i:successfully reset)\.?(?:\s|{line}){{1,8}}New value:[ \t]{{1,4}}([^\s\"'\\]{{6,200}})",
        ),
        # what Vault, Consul and Nomad print
        (
            "key",
            ("unseal key ", "recovery key "),
            r"(?i:(?:unseal|recovery) key) [0-9]{1,2}:[ \t]{1,4}([A-Za-z0-9+/=]{32,200})",
        ),
        (
            "secret",
            ("secretid", "secret id", "secret_id"),
            r"(?i:secret[ _]?id)\\{0,4}\"?[ \t]{0,20}[:=]?[ \t]{0,20}\\{0,4}\"?"
            r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?![\w-])",
        ),
        ("secret", ("::add-mask::",), r"::add-mask::(?!\$)([^\s\"'\\]{4,4000})"),
        # words of a command in a list: "--password", "…"
        (
            "password",
            ("--",),
            r"(?<=[\"'])--(?:[a-z]{1,20}-){0,3}(?:password|passwd|passphrase|pass|token|secret|api-?key|access-?key|auth-?key)"
            r"\\{0,4}[\"']\s{0,4},\s{0,20}\\{0,4}[\"'](?=[^\s\"']{0,100}[0-9!@#%^&*])([^\s\"'\\$<-][^\s\"'\\]{3,300})(?=\\{0,4}[\"'])",
        ),
        (
            "password",
            ("sqlcmd ", "bcp "),
            rf"\b(?:sqlcmd|bcp)\s[^\n|;]{{0,200}}?\s-P[ \t]{{0,3}}{quote}([^\s\"'\\-][^\s\"'\\]{{3,200}})",
        ),
        ("password", ("7z ", "7za "), rf"\b7za?\s[^\n|;]{{0,200}}?\s-p{quote}([^\s\"'\\]{{3,200}})(?=[\s\"'\\]|\Z)"),
        (
            "password",
            ("jdbc:oracle",),
            r"\bjdbc:oracle:\w{1,10}:[\w.$-]{1,60}/([^\s\"'\\/@]{3,200})@",
        ),
        (
            "signature",
            ("?sig", "&sig", "?x-", "&x-"),
            r"[?&](?:sig|signature|X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature)=([A-Za-z0-9%+/=_-]{20,})",
        ),
    )
    # A word may begin behind an escaped line break, whose ``n`` is a letter.
    begin = r"(?:\b|(?<=\\[nrt]))"
    anchored = ((kind, starts, re.sub(r"^\\b", lambda _: begin, pattern)) for kind, starts, pattern in rules)
    return tuple(
        _Credential(kind, starts, Words(starts), cache(partial(re.compile, pattern)))
        for kind, starts, pattern in anchored
    )


@cache
def _credential_starts() -> Words:
    return Words(start for one in _credential_patterns() for start in one.starts)


@cache
def _cookies() -> re.Pattern[str]:
    return re.compile(
        r"(?i:\b(?:set-)?cookie)\\{0,4}[\"']?\s{0,4}:\s{0,4}\\{0,4}[\"']?([\w.!$-]{1,100}=[^\n\"'\\]{1,8000})"
    )


def scrub_headers(text: str) -> str:
    """``text`` without credentials in headers, cookies and command-line options."""
    lowered = text.lower()
    if present := set(_credential_starts().within(lowered)):
        for one in _credential_patterns():
            if not present.isdisjoint(one.starts):
                text = _without_credentials(text, one)
    return _cookies().sub(_without_cookie_values, text) if "ookie" in lowered else text


def _without_credentials(text: str, credential: _Credential) -> str:
    """Replace the first group of the matches of the credential's pattern, which begin with one of its words."""
    parts, done, pattern = list[str](), 0, credential.pattern()
    for at in occurrences(text, credential.words):
        match = pattern.match(text, at) if at >= done else None
        if match and MARK not in match[0] and not _is_expression(match[1]):
            parts += [text[done : match.start(1)], placeholder(credential.kind)]
            done = whole_end(text, *match.span(1))
    return "".join((*parts, text[done:])) if parts else text


def _is_expression(value: str) -> bool:
    """Whether ``value`` is a template, a mask, or an expression of code, in place of a secret."""
    if set(value) <= set("*x.•-_X"):
        return True
    if value.startswith(("${", "$(", "<", "{", "[")) or (value[0] == "$" and value[1:].isidentifier()):
        return True
    name = value.partition("(")[0].partition("[")[0].rstrip("}]),:")
    return name.replace(".", "_").isidentifier() and not any(map(str.isdigit, name)) and (name != value or "." in value)


def _without_cookie_values(match: re.Match[str]) -> str:
    start = match.start(1) - match.start()
    return match[0][:start] + ";".join(map(_without_cookie_value, match[1].split(";")))


def _without_cookie_value(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if (
        not equals
        or (value.isalpha() and len(value) < 10)
        or name.strip().lower() in _COOKIE_ATTRIBUTES
        or MARK in value
    ):
        return pair
    return f"{name}={placeholder('cookie')}"
