"""Messages with identifiers as developers write them, and questions that name the identifiers in whole or in part."""

from __future__ import annotations

_SAID = [
    ("dana", "The leak is in src/db/session_pool.py, line 88: the connection is never given back."),
    ("dana", "I moved the retry loop from src/net/http_client.py to src/net/backoff.py."),
    ("lee", "PROJ-4821 is the ticket for the login page that hangs."),
    ("lee", "We closed INFRA-977 yesterday after the new disks arrived."),
    ("dana", "maxRetryCount was 3 and should be 5 for slow networks."),
    ("lee", "parseInvoiceHeader fails when the customer has no postal code."),
    ("dana", "Set billing.tax.default_rate to 0.19 in the staging file."),
    ("lee", "nexus.cache.evictions doubles every night at two."),
    ("dana", "The regression came with commit 9f3c1ab47de2, not with the one before it."),
    ("lee", "Revert b71e0d95c3aa if the canary turns red."),
    ("dana", "We pinned libxml to v2.11.4 because 2.12.0 breaks the parser."),
    ("lee", "The cluster runs Kubernetes 1.29.3 since Monday."),
    ("dana", "user_account_balance must never be negative, so I added a constraint."),
    ("lee", "The migration 20240817_add_ledger_index takes forty minutes."),
    ("dana", "frontend/components/CheckoutButton.tsx renders twice on Safari."),
    ("lee", "ERR_CERT_AUTHORITY_INVALID shows up on the kiosk machines only."),
    ("dana", "The flag --max-old-space-size=4096 stopped the build from dying."),
    ("lee", "OrderService.cancelOrder swallows the timeout exception."),
    ("dana", "docker-compose.override.yml has the ports that the tests need."),
    ("lee", "The bucket is called acme-prod-invoices-2024."),
]
_AROUND = [
    "Let us look at this again after lunch, the numbers seem off.",
    "The session went well, and the pool was warm enough to swim.",
    "Can you retry the upload? My client was offline.",
    "The project has four thousand users by now.",
    "I think the header of the invoice should be blue.",
    "The balance between work and family matters to this team.",
    "Please add the ledger to the index of the handbook.",
    "The checkout of the hotel is at eleven, there is a button at the desk.",
    "Version two of the plan is in the folder.",
    "We should order pizza and cancel the sandwiches.",
    "The default rate of our card is too high, says the tax adviser.",
    "My cache of snacks is empty, evictions are coming up next door.",
    "The authority for parking says that the permit is invalid.",
    "Our parser for recipes breaks on fractions.",
    "The ports of Rotterdam and Hamburg need more cranes.",
    "The space in the old building is 4 m wide.",
    "I will commit to Thursdays, not to Fridays.",
    "The canary sings every morning.",
    "Kiosk machines sell tickets at the station.",
    "The bucket in the kitchen leaks, we need a new one.",
]
# Everyday sentences that are made of the identifiers' own parts, so that a part alone finds many other messages.
_WHO = ("The session", "Our pool", "A client", "The invoice", "The account", "My ticket", "This index", "The order")
_DID = ("is in version 2 of the plan", "lost its header", "has a retry button", "went over the ledger in 2024")
_THEN = (
    "and the balance was fine",
    "so the user left the cache alone",
    "before the service could cancel it",
    "at the default rate",
    "and max said the count was 11",
    "because the authority of the space was old",
    "and the production bucket is next",
)
_FILLED = [
    f"{who} {did} {then}."
    for one, who in enumerate(_WHO)
    for two, did in enumerate(_DID)
    for then in _THEN[(one + two) % 2 :: 2]
]
# (id, author, text): each message with an identifier stands between messages with everyday uses of its words.
MESSAGES = [
    line
    for place, (author, said) in enumerate(_SAID)
    for line in (
        (f"i{place}", author, said),
        (f"o{place}", "sam", _AROUND[place]),
        *((f"f{place}.{n}", "sam", filled) for n, filled in enumerate(_FILLED[place :: len(_SAID)])),
    )
]
# (kind of question, question, id of the message that has the identifier)
QUESTIONS = [
    *(
        ("whole", question, f"i{place}")
        for place, question in enumerate(
            [
                "src/db/session_pool.py",
                "src/net/backoff.py",
                "PROJ-4821",
                "INFRA-977",
                "maxRetryCount",
                "parseInvoiceHeader",
                "billing.tax.default_rate",
                "nexus.cache.evictions",
                "9f3c1ab47de2",
                "b71e0d95c3aa",
                "v2.11.4",
                "1.29.3",
                "user_account_balance",
                "20240817_add_ledger_index",
                "frontend/components/CheckoutButton.tsx",
                "ERR_CERT_AUTHORITY_INVALID",
                "--max-old-space-size",
                "OrderService.cancelOrder",
                "docker-compose.override.yml",
                "acme-prod-invoices-2024",
            ]
        )
    ),
    ("part", "session_pool", "i0"),
    ("part", "session_pool.py", "i0"),
    ("part", "http_client", "i1"),
    ("part", "4821", "i2"),
    ("part", "977", "i3"),
    ("part", "default_rate", "i6"),
    ("part", "CheckoutButton", "i14"),
    ("part", "cancelOrder", "i17"),
    ("part", "OrderService", "i17"),
    ("part", "add_ledger_index", "i13"),
    ("part", "2.11.4", "i10"),
    ("part", "docker-compose", "i18"),
    ("part", "CERT_AUTHORITY", "i15"),
    ("part", "prod-invoices", "i19"),
    ("stem", "max retry count", "i4"),
    ("stem", "parsing invoice headers", "i5"),
    ("stem", "session pools", "i0"),
    ("stem", "account balances of users", "i12"),
    ("stem", "ledger indexes migration", "i13"),
    ("stem", "checkout buttons component", "i14"),
    ("stem", "cancel orders service", "i17"),
    ("prefix", "9f3c1ab", "i8"),
    ("prefix", "b71e0d95", "i9"),
    ("prefix", "commit 9f3c1ab4", "i8"),
    ("other form", "#4821", "i2"),
    ("other form", "proj 4821", "i2"),
    ("other form", "max_retry_count", "i4"),
    ("other form", "userAccountBalance", "i12"),
    ("other form", "version 2.11.4 of libxml", "i10"),
    ("other form", "session-pool", "i0"),
]
