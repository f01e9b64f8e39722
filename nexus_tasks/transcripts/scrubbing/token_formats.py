"""The formats of tokens that providers issue: the mark that each token contains, and the pattern of the whole token.

The patterns follow the descriptions of the providers, GitHub's list of supported secret scanning patterns, and the
rules of gitleaks (MIT licence, Copyright (c) 2019 Zachary Rice).
"""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """A kind of token.

    - ``marks``: ``pattern`` is tried only when the text contains one of these texts.
    - ``inner``: the mark is in the middle of the token. The letters before the mark belong to the secret.
    - ``wordlike``: the mark also occurs at the end of ordinary words, such as ``task-`` and ``monkey-``. The pattern
      then counts only at the beginning of a word. The marks of all other kinds occur in no ordinary word.
    """

    kind: str
    marks: tuple[str, ...]
    pattern: str
    inner: bool = False
    wordlike: bool = False


_UUID = r"[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}"

FORMATS = (
    Format("nexus token", ("nexus_",), r"nexus_[0-9a-f]{16}_[A-Za-z0-9_-]{43}"),  # an access token of a namespace
    Format("k3s token", ("::server:", "::node:"), r"K10[0-9a-f]{64}::(?:server|node):[0-9A-Za-z]{16,}", inner=True),
    # models and their tools
    Format("anthropic key", ("sk-ant-",), r"sk-ant-[A-Za-z0-9_-]{16,}"),
    Format(
        "openai key",
        ("sk-",),
        r"sk-(?:(?=[A-Za-z_-]{0,200}[0-9])(?:proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_-]{20,}|[A-Za-z]{40,})",
        wordlike=True,
    ),
    Format("xai key", ("xai-",), r"xai-[A-Za-z0-9_-]{40,}", wordlike=True),
    Format("perplexity key", ("pplx-",), r"pplx-[A-Za-z0-9]{32,}"),
    Format("nvidia key", ("nvapi-",), r"nvapi-[A-Za-z0-9_-]{40,}"),
    Format("pinecone key", ("pcsk_",), r"pcsk_[A-Za-z0-9_]{30,}"),
    Format("tavily key", ("tvly-",), r"tvly-[A-Za-z0-9_-]{20,}"),
    Format("langsmith key", ("lsv2_", "ls__"), r"(?:lsv2_(?:pt|sk)_[A-Za-z0-9_]{32,}|ls__[a-f0-9]{32})"),
    Format("lm studio token", ("sk-lm-",), r"sk-lm-[A-Za-z0-9]{6,40}:[A-Za-z0-9_-]{16,}"),
    Format("together key", ("tgp_v1_",), r"tgp_v1_[A-Za-z0-9_-]{30,}"),
    Format("zep key", ("z_1dWlkIjoi",), r"z_1dWlkIjoi[A-Za-z0-9_-]{20,300}\.[A-Za-z0-9_-]{40,}"),
    Format("context7 key", ("ctx7sk-",), rf"ctx7sk-{_UUID}"),
    Format("jina key", ("jina_",), r"jina_[A-Za-z0-9_-]{30,}"),
    Format("hugging face token", ("hf_", "api_org_"), r"(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    Format("replicate token", ("r8_",), r"r8_[A-Za-z0-9]{30,}"),
    Format("groq key", ("gsk_",), r"gsk_[A-Za-z0-9]{30,}"),
    Format("cerebras key", ("csk-",), r"csk-[a-z0-9]{40,}", wordlike=True),
    Format("fireworks key", ("fw_",), r"fw_(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{22,}", wordlike=True),
    Format("voyage key", ("pa-",), r"pa-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])", wordlike=True),
    Format("firecrawl key", ("fc-",), r"fc-[a-f0-9]{32}(?![A-Za-z0-9])", wordlike=True),
    Format("wandb key", ("wandb_v1_",), r"wandb_v1_[A-Za-z0-9_]{40,}"),
    Format("runpod key", ("rpa_",), r"rpa_[A-Za-z0-9]{40,}", wordlike=True),
    Format(
        "modal token", ("ak-", "as-"), r"a[ks]-(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{22}(?![A-Za-z0-9-])", wordlike=True
    ),
    Format("e2b key", ("e2b_",), r"e2b_[a-f0-9]{40}"),
    Format("chroma key", ("ck-",), r"ck-[A-Za-z0-9]{43}(?![A-Za-z0-9])", wordlike=True),
    Format("anyscale key", ("esecret_",), r"esecret_[a-z0-9]{20,}"),
    Format("lambda key", ("secret_",), r"secret_[a-z0-9-]{1,40}_[a-f0-9]{32}\.[A-Za-z0-9]{32}"),
    Format("browserbase key", ("bb_",), r"bb_(?:live|test)_[A-Za-z0-9_-]{20,}"),
    # clouds
    Format(
        "aws access key",
        ("AKIA", "ASIA", "ABIA", "ACCA", "A3T"),
        r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}(?![A-Za-z0-9])",
    ),
    Format("aws bedrock key", ("ABSK",), r"ABSK[A-Za-z0-9+/=]{100,}"),
    Format("aws bedrock key", ("bedrock-api-key-",), r"bedrock-api-key-[A-Za-z0-9+/=_-]{40,}"),
    Format("aws session token", ("IQoJb3JpZ2lu",), r"IQoJb3JpZ2lu[A-Za-z0-9+/=%]{60,}"),
    Format("google api key", ("AIza",), r"AIza[A-Za-z0-9_-]{35}"),
    Format("google api key", ("AQ.Ab8",), r"AQ\.Ab8[A-Za-z0-9_-]{40,}"),
    Format("google client secret", ("GOCSPX-",), r"GOCSPX-[A-Za-z0-9_-]{20,}"),
    Format("google access token", ("ya29.",), r"ya29\.[A-Za-z0-9_-]{20,}"),
    Format("google refresh token", ("1//0",), r"1//0[A-Za-z0-9_-]{30,}", wordlike=True),
    Format("firebase server key", (":APA91b",), r":APA91b[A-Za-z0-9_-]{100,}", inner=True),
    Format(
        "azure account key",
        ("AccountKey=", "SharedAccessKey="),
        r"(?:Account|SharedAccess)Key=[A-Za-z0-9+/]{40,}={0,2}",
    ),
    Format(
        "azure account key",
        ("PRIMARY_KEY", "primary_key", "rimaryKey", "PRIMARY_MASTER_KEY", "primary_master_key", "rimaryMasterKey"),
        r"(?:PRIMARY|[Pp]rimary)_?(?:MASTER|[Mm]aster)?_?(?:KEY|[Kk]ey)[\"'\\]{0,6}\s{0,4}[:=]\s{0,4}[\"'\\]{0,6}[A-Za-z0-9+/]{86}==",
        inner=True,
    ),
    # Microsoft's keys with a fixed signature in the middle
    Format("azure client secret", ("Q~",), r"[0-9]Q~[A-Za-z0-9_~.-]{30,}", inner=True),
    Format("azure key", ("JQQJ99",), r"JQQJ99[A-Z0-9]{2,}[A-Za-z0-9]{16,}", inner=True),
    Format("azure devops token", ("AZDO",), r"AZDO(?<=[A-Za-z0-9]{40}AZDO)[A-Za-z0-9]{4}(?![A-Za-z0-9])", inner=True),
    Format(
        "azure key",
        ("+ACR", "+ASt", "ACDb", "AzSe", "AzFu", "+AEh", "+ARm", "AzCa", "APIM", "AIoT", "+AMC", "+ABa"),
        r"(?<=[A-Za-z0-9+/_-]{32})(?:\+(?:ACR|ASt|AEh|ARm|AMC|ABa)|ACDb|AzSe|AzFu|AzCa|APIM|AIoT)"
        r"[A-Za-z0-9+/_-]{4,8}={0,2}(?![A-Za-z0-9])",
        inner=True,
    ),
    Format("digitalocean token", ("dop_v1_", "doo_v1_", "dor_v1_"), r"do[por]_v1_[a-f0-9]{40,}"),
    Format("alibaba access key", ("LTAI",), r"LTAI[A-Za-z0-9]{16,24}(?![A-Za-z0-9])", wordlike=True),
    Format("tencent secret id", ("AKID",), r"AKID[A-Za-z0-9]{32}(?![A-Za-z0-9])", wordlike=True),
    Format(
        "yandex key",
        ("AQVN", "t1."),
        r"(?:AQVN[A-Za-z0-9_-]{35,}|t1\.[A-Za-z0-9_-]+={0,2}\.[A-Za-z0-9_-]{86}={0,2})",
        wordlike=True,
    ),
    Format("cloudflare key", ("v1.0-",), r"v1\.0-[a-f0-9]{24}-[a-f0-9]{146}"),
    Format("heroku key", ("HRKU-",), r"HRKU-[A-Za-z0-9_-]{30,}"),
    Format(
        "fly token", ("fo1_", "fm1", "fm2_"), r"(?:fo1_[\w-]{43}|fm1[ar]_[\w+/-]{60,}={0,3}|fm2_[\w+/-]{60,}={0,3})"
    ),
    Format("vercel blob token", ("vercel_blob_rw_",), r"vercel_blob_rw_[A-Za-z0-9]{10,40}_[A-Za-z0-9]{20,}"),
    Format("vercel token", ("vcp_", "vck_", "vci_", "vca_", "vcr_"), r"vc[pkiar]_[A-Za-z0-9]{24,}", wordlike=True),
    Format("netlify token", ("nfp_", "nfc_", "nfo_", "nfu_", "nfb_"), r"nf[pcoub]_[A-Za-z0-9]{36,}", wordlike=True),
    Format("render key", ("rnd_",), r"rnd_(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{24,}", wordlike=True),
    Format("scalingo token", ("tk-us-",), r"tk-us-[\w-]{40,}"),
    Format("openshift token", ("sha256~",), r"sha256~[\w-]{40,}"),
    Format("aiven password", ("AVNS_",), r"AVNS_[A-Za-z0-9_-]{15,}"),
    Format("volcengine key", ("AKLT", "ALTAK"), r"(?:AKLT|ALTAK)[A-Za-z0-9]{20,64}(?![A-Za-z0-9])", wordlike=True),
    Format("jd cloud key", ("JDC_",), r"JDC_[A-Z0-9]{25,}"),
    Format("google hmac key", ("GOOG1",), r"GOOG1[A-Z0-9]{20,60}(?![A-Za-z0-9])"),
    Format("upcloud token", ("ucat_",), r"ucat_[A-Z0-9]{20,}"),
    Format("backblaze key", ("K00",), r"K00[0-9][A-Za-z0-9/+]{27}(?![A-Za-z0-9/+])", wordlike=True),
    Format("swarm token", ("SWMTKN-", "SWMKEY-"), r"SWM(?:TKN|KEY)-1-[A-Za-z0-9+/-]{40,}"),
    Format("rancher token", ("token-",), r"token-[a-z0-9]{5}:[a-z0-9]{50,}", wordlike=True),
    # code, packages and their pipelines
    Format("github token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{30,}"),
    Format("github token", ("github_pat_",), r"github_pat_[A-Za-z0-9_]{22,}"),
    Format("gitlab token", ("gl",), r"gl(?:pat|dt|rt|rtr|ptt|cbt|soat|agent|ft|ffct|imt|oas|wt)-[A-Za-z0-9_.-]{20,}"),
    Format("gitlab token", ("GR1348941",), r"GR1348941[\w-]{20}"),
    Format("bitbucket token", ("ATBB", "ATCTT3"), r"(?:ATBB[A-Za-z0-9]{28,}|ATCTT3[A-Za-z0-9_=-]{50,})"),
    Format("npm token", ("npm_",), r"npm_[A-Za-z0-9]{30,}"),
    Format("pypi token", ("pypi-",), r"pypi-[A-Za-z0-9_-]{50,}"),
    Format("rubygems key", ("rubygems_",), r"rubygems_[a-f0-9]{48}"),
    Format("nuget key", ("oy2",), r"oy2[a-z0-9]{43}(?![A-Za-z0-9])", wordlike=True),
    Format("crates token", ("cio",), r"cio[A-Za-z0-9]{32}(?![A-Za-z0-9])", wordlike=True),
    Format("clojars token", ("CLOJARS_",), r"CLOJARS_[A-Za-z0-9]{60}"),
    Format("docker token", ("dckr_pat_", "dckr_oat_"), r"dckr_[po]at_[A-Za-z0-9_-]{20,}"),
    Format("jfrog token", ("AKCp", "cmVmd"), r"(?:AKCp[A-Za-z0-9]{65,}|cmVmd[A-Za-z0-9]{55,})", wordlike=True),
    Format("circleci token", ("CCIPAT_", "CCIPRJ_"), r"CCIP(?:AT|RJ)_[A-Za-z0-9_]{40,}"),
    Format("buildkite token", ("bkua_",), r"bkua_[a-f0-9]{40}"),
    Format("sonarqube token", ("squ_", "sqp_", "sqa_"), r"sq[upa]_[a-f0-9]{40}"),
    Format("snyk token", ("snyk_",), r"snyk_[su]at\.[a-z0-9]{8}\.[A-Za-z0-9_-]{40,}"),
    Format("sourcegraph token", ("sgp_",), r"sgp_(?:[A-Fa-f0-9]{16}_|local_)?[A-Fa-f0-9]{40}"),
    Format("harness key", ("pat.", "sat."), r"[ps]at\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}"),
    Format("octopus deploy key", ("API-",), r"API-[A-Z0-9]{25,}(?![A-Za-z0-9])", wordlike=True),
    Format("postman key", ("PMAK-",), r"PMAK-[A-Za-z0-9-]{50,}"),
    Format("readme key", ("rdme_",), r"rdme_[a-z0-9]{50,}"),
    Format("pulumi token", ("pul-",), r"pul-[a-f0-9]{40}"),
    Format("terraform token", (".atlasv1.",), r"\.atlasv1\.[A-Za-z0-9_=-]{50,}", inner=True),
    Format("prefect token", ("pnu_", "pnb_"), r"pn[ub]_[A-Za-z0-9]{36}"),
    Format("infracost key", ("ico-",), r"ico-[A-Za-z0-9]{32}(?![A-Za-z0-9])", wordlike=True),
    Format("github app token", ("v1.",), r"v1\.[a-f0-9]{40}(?![A-Za-z0-9])", wordlike=True),
    Format("laravel key", ("base64:",), r"base64:[A-Za-z0-9+/]{42,43}={1,2}", wordlike=True),
    # Packed tables, such as those of time zones, have long rows of digits behind a `|`.
    Format(
        "laravel token",
        ("|",),
        r"[0-9]{1,6}\|(?=[A-Z0-9]{0,47}[a-z])(?=[a-z0-9]{0,47}[A-Z])[A-Za-z0-9]{40,48}(?![A-Za-z0-9])",
        wordlike=True,
    ),
    Format("django key", ("django-insecure-",), r"django-insecure-[^\s\"'\\]{30,}"),
    Format("depot token", ("depot_",), r"depot_(?:org|project|user)_[a-f0-9]{40,}"),
    Format(
        "hook with a key", ("hook",), r"build_hooks/[0-9a-f]{24}|hooks\.zapier\.com/hooks/catch/[0-9]{4,}/[a-z0-9]{5,}"
    ),
    Format("hook with a key", ("/with/key/",), r"/with/key/[A-Za-z0-9_-]{15,}", inner=True),
    Format(
        "key in an address",
        ("?key=", "&key="),
        r"[?&]key=(?=[A-Za-z_-]{0,60}[0-9]|[a-z0-9_-]{1,60}[A-Z])[A-Za-z0-9_-]{11,}(?=[&\s\"'<>)\\#]|\Z)",
    ),
    # talk and mail
    Format("slack token", ("xox",), r"xox[abcdeoprs][.-][A-Za-z0-9.%+/=-]{10,}"),
    Format("slack token", ("xapp-",), r"xapp-[0-9]-[A-Za-z0-9-]{10,}"),
    Format(
        "slack webhook",
        ("hooks.slack.com/",),
        r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/_-]{20,}",
    ),
    Format(
        "teams webhook",
        ("webhook.office.com/", "logic.azure.com"),
        r"(?:webhook\.office\.com/webhookb2/[A-Za-z0-9@/-]{60,}|logic\.azure\.com(?::443)?/workflows/[\w/?&=.%-]{40,})",
    ),
    Format("discord webhook", ("/api/webhooks/",), r"/api/webhooks/[0-9]{10,}/[A-Za-z0-9_-]{20,}", inner=True),
    Format("discord token", (".",), r"[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}", wordlike=True),
    Format("telegram token", (":A",), r"(?:bot)?[0-9]{6,12}:A[A-Za-z0-9_-]{33,}", wordlike=True),
    Format(
        "sendgrid key",
        ("SG.",),
        r"SG\.(?:[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}|[A-Za-z0-9=_.-]{60,})",
        wordlike=True,
    ),
    Format("mailgun key", ("key-",), r"key-[a-f0-9]{32}(?![A-Za-z0-9])", wordlike=True),
    Format("mailchimp key", ("-us",), r"-us(?<=[a-f0-9]{32}-us)[0-9]{1,2}(?![A-Za-z0-9])", inner=True),
    Format("resend key", ("re_",), r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{24}(?![A-Za-z0-9])", wordlike=True),
    Format("brevo key", ("xkeysib-", "xsmtpsib-"), r"x(?:key|smtp)sib-[A-Za-z0-9]{60,}-[A-Za-z0-9]{16}"),
    Format("mailersend token", ("mlsn.",), r"mlsn\.[a-f0-9]{60,}"),
    Format("mandrill key", ("md-",), r"md-(?=[A-Za-z_-]{0,21}[0-9])[A-Za-z0-9_-]{22}(?![A-Za-z0-9_-])", wordlike=True),
    Format("smtp2go key", ("api-",), r"api-[A-F0-9]{32}(?![A-Za-z0-9])", wordlike=True),
    Format("telnyx key", ("KEY",), r"KEY[0-9A-F]{32}_[A-Za-z0-9]{20,}", wordlike=True),
    Format("onesignal key", ("os_v2_",), r"os_v2_(?:app|org)_[a-z0-9]{60,}"),
    Format(
        "ably key",
        (":",),
        r":(?<=[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{6}:)(?=[^A-Z\s]{0,40}[A-Z])[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])",
        inner=True,
    ),
    Format("pubnub key", ("sec-c-",), r"sec-c-[A-Za-z0-9]{36,}"),
    Format("twilio key", ("SK",), r"SK[a-f0-9]{32}(?![A-Za-z0-9])", wordlike=True),
    Format("intercom token", ("dG9rO",), r"dG9rO[A-Za-z0-9+/=]{40,}", wordlike=True),
    # money and shops
    Format(
        "stripe key",
        ("sk_", "rk_"),
        r"[sr]k_(?:org_)?(?:live|test|prod)_[A-Za-z0-9]{10,}",
    ),
    Format("stripe webhook secret", ("whsec_",), r"whsec_[A-Za-z0-9+/=]{20,}"),
    Format(
        "key",
        ("sk_",),
        r"sk_(?:(?=[A-Za-z]{0,60}[0-9])[A-Za-z0-9]{26,}|[A-Za-z]{28,}|(?=[\w-]{0,40}[0-9])[\w-]{43})(?![\w-])",
        wordlike=True,
    ),
    Format("shopify token", ("shp", "prtapi_"), r"(?:shp(?:at|ca|pa|ss|ua|it|rk)|prtapi)_[a-fA-F0-9]{32}"),
    Format("square token", ("sq0",), r"sq0[a-z]{3}-[A-Za-z0-9_-]{22,}"),
    Format("square token", ("EAAA",), r"EAAA[\w-]{22,}", wordlike=True),
    Format("facebook token", ("EAA", "IGQV"), r"(?:EAA[A-Z]|IGQV)[A-Za-z0-9_-]{80,}", wordlike=True),
    Format("braintree token", ("access_token$",), r"access_token\$(?:production|sandbox)\$[a-z0-9]{10,}\$[a-f0-9]{32}"),
    # Every line of a certificate has 64 characters, and some begin with these letters.
    Format("adyen key", ("AQE",), r"AQE[a-z0-9]{5}[A-Za-z0-9+/=]{100,}", wordlike=True),
    Format("plaid token", ("access-",), rf"access-(?:sandbox|development|production)-{_UUID}"),
    Format("paddle key", ("pdl_",), r"pdl_(?:live|sdbx)_apikey_[A-Za-z0-9_]{40,}"),
    Format("razorpay key", ("rzp_",), r"rzp_(?:live|test)_[A-Za-z0-9]{14,}"),
    Format("flutterwave key", ("FLWSECK",), r"FLWSECK(?:_TEST)?-[A-Za-z0-9]{12,}(?:-X)?"),
    Format("easypost key", ("EZAK", "EZTK"), r"EZ[AT]K[A-Za-z0-9]{54}"),
    Format("duffel token", ("duffel_",), r"duffel_(?:test|live)_[A-Za-z0-9_=-]{30,}"),
    Format("shippo token", ("shippo_",), r"shippo_(?:live|test)_[a-fA-F0-9]{40}"),
    Format(
        "mercadopago token", ("APP_USR-", "TEST-"), r"(?:APP_USR|TEST)-[0-9]{10,}-[0-9]{6}-[0-9a-f]{32}(?:-[0-9]{6,})?"
    ),
    Format("midtrans key", ("-server-",), r"(?:SB-)?Mid-server-[A-Za-z0-9_-]{20,}"),
    Format(
        "payment key",
        ("live_", "test_"),
        r"(?:live|test)_(?=[a-z]{0,40}[A-Z0-9])(?=[A-Z0-9_-]{0,40}[a-z])(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9]{30,}(?![A-Za-z0-9_])",
        wordlike=True,
    ),
    Format(
        "onfido token",
        ("api_live", "api_sandbox"),
        r"api_(?:live|sandbox)(?:_[a-z]{2})?\.[A-Za-z0-9_-]{11}\.[A-Za-z0-9_-]{32}",
    ),
    Format("omise key", ("skey_",), r"skey_(?:test_)?[a-z0-9]{19}(?![a-z0-9])"),
    Format("woocommerce key", ("ck_", "cs_"), r"c[ks]_[a-f0-9]{40}(?![A-Za-z0-9])", wordlike=True),
    Format("imagekit key", ("private_",), r"private_[A-Za-z0-9+/]{27}="),
    # work and its documents
    Format("linear key", ("lin_",), r"lin_(?:api|oauth|wh)_[A-Za-z0-9]{30,}"),
    Format("notion token", ("ntn_",), r"ntn_[A-Za-z0-9]{40,}"),
    Format("notion token", ("secret_",), r"secret_[A-Za-z0-9]{43}(?![A-Za-z0-9])"),
    Format("atlassian token", ("ATATT3", "ATSTT3", "ATOAT"), r"AT(?:ATT3|STT3|OAT)[A-Za-z0-9_=-]{50,}"),
    Format("trello token", ("ATTA",), r"ATTA[A-Za-z0-9]{60,}", wordlike=True),
    Format("figma token", ("figd_", "figo_", "figu_"), r"fig[dou][hr]?_[A-Za-z0-9_-]{30,}"),
    Format("airtable token", ("pat",), r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}", wordlike=True),
    Format("asana token", ("1/", "2/"), r"[12]/[0-9]{16}(?:/[0-9]{16})?:[a-f0-9]{32}", wordlike=True),
    Format("clickup token", ("pk_",), r"pk_[0-9]{5,12}_[A-Z0-9]{32}", wordlike=True),
    Format("hubspot token", ("pat-",), rf"pat-(?:na|eu|ap)[0-9]-{_UUID}", wordlike=True),
    Format("salesforce session", ("00D",), r"00D[A-Za-z0-9]{12,15}![A-Za-z0-9._]{60,}", wordlike=True),
    Format("contentful token", ("CFPAT-",), r"CFPAT-[A-Za-z0-9_-]{40,}"),
    Format("typeform token", ("tfp_",), r"tfp_[A-Za-z0-9_.=-]{40,}"),
    Format("frame.io token", ("fio-u-",), r"fio-u-[A-Za-z0-9_=-]{60,}"),
    Format("beamer token", ("b_",), r"b_(?=[A-Za-z_=-]{0,44}[0-9])[A-Za-z0-9=_-]{44}(?![A-Za-z0-9=_-])", wordlike=True),
    Format("close key", ("api_",), r"api_[A-Za-z0-9]{20,24}\.[A-Za-z0-9]{20,24}(?![A-Za-z0-9])", wordlike=True),
    Format("metabase key", ("mb_",), r"mb_[A-Za-z0-9+/]{40,44}={0,2}", wordlike=True),
    # watching
    Format("new relic key", ("NRAK-", "NRII-", "NRJS-"), r"NR(?:AK|II|JS)-[A-Za-z0-9_-]{19,}"),
    Format("new relic key", ("NRAL",), r"NRAL(?<=[a-f0-9]{36}NRAL)(?![A-Za-z0-9])", inner=True),
    Format("sentry token", ("sntrys_", "sntryu_"), r"sntry[su]_[A-Za-z0-9+/=_-]{40,}"),
    Format("grafana token", ("glsa_", "glc_"), r"gl(?:sa|c)_[A-Za-z0-9+/=_-]{30,}"),
    Format("grafana key", ("eyJrIjoi",), r"eyJrIjoi[A-Za-z0-9+/=]{50,}"),
    Format("honeycomb key", ("hca", "hcx"), r"hc[abx][il]k_[A-Za-z0-9]{30,}"),
    Format("dynatrace token", ("dt0",), r"dt0[a-z][0-9]{2}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{60,}"),
    Format("posthog key", ("phx_", "phc_"), r"ph[xc]_[A-Za-z0-9]{30,}"),
    Format("launchdarkly key", ("sdk-", "api-", "mob-"), rf"(?:sdk|api|mob)-{_UUID}", wordlike=True),
    Format("configcat key", ("configcat-",), r"configcat-(?:sdk|proxy)-1/[A-Za-z0-9_-]{22}/[A-Za-z0-9_-]{22}"),
    Format("flagsmith key", ("ser.",), r"ser\.[A-Za-z0-9]{22}(?![A-Za-z0-9])", wordlike=True),
    Format("fullstory key", ("na1.", "eu1."), r"(?:na|eu)1\.[A-Za-z0-9+/]{60,}={0,2}", wordlike=True),
    # data
    Format("databricks token", ("dapi",), r"dapi[a-f0-9]{32}(?:-[0-9])?"),
    Format(
        "snowflake token", ("-ETMsDg",), r"(?:ver:[0-9]-hint:[0-9]{1,20})?-ETMsDg[A-Za-z0-9+/=]{40,}", wordlike=True
    ),
    Format("dbt token", ("dbtc_", "dbtu_"), r"dbt[cu]_[A-Za-z0-9_=-]{36,}"),
    Format("supabase token", ("sbp_", "sb_secret_"), r"(?:sbp_[a-f0-9]{40}|sb_secret_[A-Za-z0-9_-]{20,})"),
    Format("confluent secret", ("cflt",), r"cflt[A-Za-z0-9+/]{60}", wordlike=True),
    Format("neon key", ("napi_",), r"napi_[a-z0-9]{40,}"),
    Format("planetscale token", ("pscale_",), r"pscale_(?:tkn|oauth|pw)_[A-Za-z0-9_.=-]{30,}"),
    Format("mongodb atlas secret", ("mdb_sa_",), r"mdb_sa_(?:sk|id)_[A-Za-z0-9_-]{20,}"),
    Format("fauna secret", ("fnA",), r"fnA[A-Za-z0-9_-]{37}(?![A-Za-z0-9_-])", wordlike=True),
    Format("clickhouse key", ("4b1d",), r"4b1d[A-Za-z0-9]{38}(?![A-Za-z0-9])", wordlike=True),
    Format("mapbox token", ("sk.ey",), r"sk\.ey[A-Za-z0-9_-]{50,}\.[A-Za-z0-9_-]{16,}", wordlike=True),
    Format("maxmind key", ("_mmk",), r"_mmk(?<=[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk)(?![A-Za-z0-9])", inner=True),
    Format("rapidapi key", ("msh",), r"[a-f0-9]{10}msh[a-f0-9]{15}p[a-f0-9]{6}jsn[a-f0-9]{12}", wordlike=True),
    Format(
        "sanity token", ("sk",), r"(?<![/+])sk(?=[A-Za-z]{0,80}[0-9])[A-Za-z0-9]{78,}(?![A-Za-z0-9])", wordlike=True
    ),
    Format("elastic key", ("essu_",), r"essu_[A-Za-z0-9+/]{40,}={0,2}"),
    Format(
        "convex key",
        ("prod:", "dev:", "preview:"),
        r"(?:prod|dev|preview):[a-z]{2,20}-[a-z]{2,20}-[0-9]{1,5}\|[A-Za-z0-9+/=_-]{30,}",
        wordlike=True,
    ),
    Format("cockroach key", ("CCDB1_",), r"CCDB1_[A-Za-z0-9]{20,24}_[A-Za-z0-9]{36,}"),
    Format("tinybird token", ("p.ey",), r"p\.ey[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}", wordlike=True),
    Format("tableau token", ("==:",), r"==:(?<=[A-Za-z0-9+/]{22}==:)[A-Za-z0-9]{32}(?![A-Za-z0-9])", inner=True),
    # identity and networks
    Format("vault token", ("hvs.", "hvb.", "hvr."), r"hv[sbr]\.[A-Za-z0-9_-]{20,}", wordlike=True),
    Format("vault token", ("s.",), r"s\.(?=[A-Za-z]{0,24}[0-9])[A-Za-z0-9]{24}(?![A-Za-z0-9.])", wordlike=True),
    Format("doppler token", ("dp.",), r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{30,}", wordlike=True),
    Format("infisical token", ("st.",), r"st\.[a-f0-9-]{24,36}\.[a-f0-9]{32}\.[a-f0-9]{32}", wordlike=True),
    Format("1password key", ("A3-",), r"A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}"),
    Format("1password token", ("ops_eyJ",), r"ops_eyJ[A-Za-z0-9+/_=-]{100,}"),
    Format("tailscale key", ("tskey-",), r"tskey-[a-z]{2,20}-[A-Za-z0-9-]{20,}"),
    Format("ngrok token", ("_",), r"[12][A-Za-z0-9]{26}_[A-Za-z0-9]{21,22}(?![A-Za-z0-9_])", wordlike=True),
    Format(
        "okta token",
        ("00",),
        r"00(?=[A-Za-z0-9_-]{0,30}[A-Z])(?=[0-9A-Z_-]{0,30}[a-z])[A-Za-z0-9_-]{40}(?![A-Za-z0-9_-])",
        wordlike=True,
    ),
    Format("ory token", ("ory_",), r"ory_(?:pat|at|rt|ac|st)_[A-Za-z0-9_.-]{30,}"),
    Format("bitwarden token", ("0.",), rf"0\.{_UUID}\.[A-Za-z0-9]{{30}}:[A-Za-z0-9+/]{{20,}}={{0,2}}", wordlike=True),
    Format("dashlane key", ("dls_",), r"dls_[A-Z0-9]{16}_[A-Za-z0-9]{30,}"),
    Format("wallet key", ("xprv", "yprv", "zprv"), r"[xyz]prv[1-9A-HJ-NP-Za-km-z]{100,112}"),
    Format("nostr key", ("nsec1",), r"nsec1[a-z0-9]{58}(?![a-z0-9])"),
    Format(
        "token",
        ("waka_", "rootly_", "persona_", "zpka_", "hxtp_", "ldpat_"),
        rf"(?:waka_{_UUID}|rootly_[a-f0-9]{{40,}}|"
        rf"persona_(?:production|sandbox)_{_UUID}|zpka_[a-z0-9]{{32}}_[a-f0-9]{{8}}|hxtp_[a-f0-9]{{40,}}|ldpat_[a-f0-9]{{32}})",
    ),
    Format("adobe secret", ("p8e-",), r"p8e-[A-Za-z0-9_-]{32}", wordlike=True),
    Format(
        "authress key",
        (".acc_", ".acc-"),
        r"(?:sc|ext|scauth|authress)_[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[A-Za-z0-9+/_=-]{30,}",
    ),
    Format("defined networking token", ("dnkey-",), r"dnkey-[A-Za-z0-9=_-]{26}-[A-Za-z0-9=_-]{52}"),
    Format("42 secret", ("s-s4t2",), r"s-s4t2(?:ud|af)-[a-f0-9]{64}"),
    Format("settlemint token", ("sm_",), r"sm_[aps]at_[A-Za-z0-9]{16,}"),
    Format("twitter token", ("AAAAAAAAAAAAAAAAAAAA",), r"A{20,22}(?!A)[A-Za-z0-9%]{70,}", wordlike=True),
    Format("dropbox token", ("sl.",), r"sl\.(?:u\.)?[A-Za-z0-9_-]{100,}", wordlike=True),
    Format("age key", ("AGE-SECRET-KEY-", "age-secret-key-"), r"(?i:AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{50,})"),
    Format(
        "jwt",
        ("eyJ",),
        r"eyJ[A-Za-z0-9_-]{8,1000}\.[A-Za-z0-9_-]{8,40000}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+){0,2}",
    ),
    # hashes of passwords
    Format("password hash", ("$2a$", "$2b$", "$2y$"), r"\$2[aby]\$[0-9]{2}\$[A-Za-z0-9./]{53}"),
    Format(
        "password hash",
        ("$argon2",),
        r"\$argon2(?:id|i|d)\$v=[0-9]{1,3}\$[a-z0-9=,]{5,60}\$[A-Za-z0-9+/]{8,100}\$[A-Za-z0-9+/]{16,200}",
    ),
    Format(
        "password hash",
        ("$1$", "$5$", "$6$", "$apr1$", "$y$"),
        r"\$(?:1|5|6|apr1|y)\$[A-Za-z0-9./$=]{4,60}\$[A-Za-z0-9./]{22,100}",
    ),
    Format(
        "password hash",
        ("pbkdf2",),
        r"pbkdf2[_:-]sha[0-9]{1,3}[$:][0-9]{1,8}\$[A-Za-z0-9+/._-]{4,100}\$[A-Za-z0-9+/._-]{20,200}={0,2}",
    ),
    Format(
        "password hash",
        ("scrypt:",),
        r"scrypt:[0-9]{1,8}:[0-9]{1,3}:[0-9]{1,3}\$[A-Za-z0-9+/._-]{4,100}\$[A-Za-z0-9+/._-]{30,300}",
    ),
    Format(
        "password hash",
        ("SCRAM-SHA-",),
        r"SCRAM-SHA-[0-9]{1,3}\$[0-9]{1,8}:[A-Za-z0-9+/=]{8,100}\$[A-Za-z0-9+/=]{20,200}:[A-Za-z0-9+/=]{20,200}",
    ),
    Format("password hash", ("*",), r"\*[0-9A-F]{40}(?![0-9A-Za-z])", wordlike=True),
    Format("password hash", ("$9$",), r"\$9\$[A-Za-z0-9./-]{16,100}"),
    Format(
        "ntlm hash",
        (":",),
        r":(?<=[a-f0-9]{32}:)(?=[a-f0-9]{0,31}[a-f])[a-f0-9]{32}(?=:::|\s|\Z|[\"'\\,.])",
        inner=True,
    ),
)
