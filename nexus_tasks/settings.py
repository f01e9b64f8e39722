"""The settings of a deployment, which the ``NEXUS_*`` environment variables set.

A test compares the descriptions in :class:`Settings` with the table in ``docs/settings.md``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import platformdirs
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from nexus_tasks.cells_file import CellsFile, read_cells
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.types.names import NAMESPACE

_Usd = Annotated[float, Field(ge=0)]
Price = tuple[_Usd, _Usd, _Usd, _Usd]

# Prices of models in USD per million tokens. The four numbers of a row are the prices of input, output, cache writes
# (kept for 5 minutes) and cache reads. The prices come from Anthropic's public price list of October 2026. The row of
# Haiku 5.5 has the prices for prompts of up to 100,000 tokens. NEXUS_PRICES overrides or adds rows.
PRICES: dict[str, Price] = {
    "claude-haiku-5-5": (0.10, 0.50, 0.125, 0.01),
    "claude-sonnet-5-5": (2.00, 10.00, 2.50, 0.10),
    "claude-sonnet-5": (2.00, 10.00, 2.50, 0.20),
    "claude-opus-5-5": (4.00, 20.00, 5.00, 0.20),
    "claude-opus-5": (5.00, 25.00, 6.25, 0.50),
    "claude-haiku-4-5": (1.00, 5.00, 1.25, 0.10),
}


FREE = frozenset({"offline"})  # models that cost nothing


def _home() -> Path:
    found = Path(platformdirs.user_data_path("nexus-tasks", appauthor=False))
    # The specification of XDG_DATA_HOME ignores a relative path.
    return found if found.is_absolute() else Path.home() / ".local/share/nexus-tasks"


def _from_the_root(path: str) -> str:
    """``path``, unless it is relative.

    A relative path would name a file of the project in which a command is started. Another person may have written it.
    """
    if not os.path.isabs(path):
        raise ValueError("the path is not absolute. Write it from the root")
    return path


class Settings(BaseSettings):
    """The settings of one deployment.

    Secrets have the type :class:`~pydantic.SecretStr`, so no log, ``repr`` or error shows a secret. The ``repr`` masks
    a password in any other URL.
    """

    model_config = SettingsConfigDict(
        env_prefix="NEXUS_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    home: Path = Field(default_factory=_home, description="folder of the embedded servers, logs and beat's schedule")
    database_url: SecretStr | None = Field(None, description="Postgres with pgvector; unset: embedded")
    redis_url: SecretStr | None = Field(
        None, description="Redis ≥ 6.2 for claims, results and the broker; unset: embedded"
    )
    broker_url: SecretStr | None = Field(None, description="another Celery broker (RabbitMQ); unset: the same Redis")
    queue_type: Literal["classic", "quorum"] = Field(
        "classic", description="type of the queues that are made in RabbitMQ: `classic` or `quorum`"
    )
    redis_master: str = Field("mymaster", description="the master's name at the Sentinels of a `sentinel://` address")
    key_prefix: str = Field("nexus", pattern=r"^[A-Za-z0-9_\-]{1,64}$", description="first part of every Redis key")
    cells: str | None = Field(None, description="file of the deployments that share the namespaces (`docs/cells.md`)")
    cell: str | None = Field(None, description="the cell of this worker or command, out of `NEXUS_CELLS`")
    database_pool_size: int | None = Field(
        None,
        ge=1,
        le=200,
        description="Postgres connections of a process; unset: 10, or 4 more than a worker's threads if that is more",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "WARNING",
        description="lowest level of the messages that the command line logs; when set, also the worker of `nexus up`",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="how workers, beat and the command line write their logs: `text` or `json`"
    )
    metrics_port: int | None = Field(
        None,
        ge=1,
        le=65_535,
        description="port of the metrics and health pages of workers and beat, or the next free one; unset: none",
    )
    metrics_host: str = Field("127.0.0.1", description="address at which workers and beat serve these pages")
    metrics_namespaces: bool = Field(
        False, description="name namespaces in traces and in the metrics of the longest lines"
    )

    model: Literal["auto", "anthropic", "openai", "offline"] = Field(
        "auto", description="the language model: `auto`, `anthropic`, `openai` or `offline`"
    )
    model_derive: str = Field(
        "claude-haiku-5-5", description="model that derives facts: a name, `PROVIDER/NAME` or `offline`"
    )
    model_reflect: str = Field("claude-sonnet-5-5", description="model that reflects")
    model_digest: str = Field("claude-haiku-5-5", description="model that digests sessions")
    model_observe: str = Field("claude-haiku-5-5", description="model that observes long conversations")
    model_condense: str = Field("claude-haiku-5-5", description="model that condenses observation logs")
    model_topics: str = Field("claude-haiku-5-5", description="model that writes topics")
    model_facts: str = Field("claude-haiku-5-5", description="model that extracts facts after a turn")
    model_answer: str = Field("claude-sonnet-5-5", description="model that answers questions")
    max_tokens_derive: int = Field(8_000, ge=256, description="longest answer of a derivation, tokens")
    max_tokens_reflect: int = Field(8_000, ge=256, description="longest answer of a reflection, tokens")
    max_tokens_digest: int = Field(4_000, ge=256, description="longest answer of a digest, tokens")
    max_tokens_observe: int = Field(6_000, ge=256, description="longest answer of an observation, tokens")
    max_tokens_condense: int = Field(
        24_000, ge=256, description="longest condensed log, tokens; of a longer log the oldest part is condensed"
    )
    max_tokens_topics: int = Field(12_000, ge=256, description="longest answer with topics, tokens")
    max_tokens_facts: int = Field(4_000, ge=256, description="longest answer with facts after a turn, tokens")
    max_tokens_answer: int = Field(2_000, ge=256, description="longest answer to a question, tokens")
    model_timeout: float = Field(120.0, gt=0, description="seconds that one model call may take")
    anthropic_base_url: str | None = Field(
        None, description="another address for the Claude API: a gateway, or a local server with Anthropic's API"
    )
    anthropic_structured_output: Literal["schema", "tool", "json"] | None = Field(
        None, description="how Claude answers: by `schema`, by `tool` or as `json`; unset: found out for each model"
    )
    openai_base_url: str | None = Field(
        None, description="address of a server with OpenAI's API, up to `/v1`; unset: as OpenAI's SDK finds it"
    )
    openai_model: str | None = Field(
        None, description="model of the provider `openai` for purposes whose own setting is unset"
    )
    openai_structured_output: Literal["schema", "tool", "json"] | None = Field(
        None, description="the same for the provider `openai`"
    )
    prices: dict[str, Price] = Field(
        default_factory=dict,
        description="JSON: model → USD per million tokens [input, output, cache write, cache read]",
    )
    budget_usd_per_day: float | None = Field(
        None, ge=0, description="USD that a namespace may spend per UTC day; unset: no limit"
    )
    batch_threshold: int = Field(
        20, ge=1, description="stored requests of urgency `dream` at which a namespace sends them as one message batch"
    )
    embedder: str = Field(
        "hashing",
        description="what makes vectors: `hashing`, `minilm`, `sentence-transformers` or `openai-compatible`",
    )
    embedder_model: str | None = Field(None, description="the embedder's model: a name, or a local folder")
    embedder_url: str | None = Field(None, description="address of an openai-compatible embedder, up to `/v1`")
    embedder_key: SecretStr | None = Field(None, description="API key of an openai-compatible embedder")

    buffer_fsync: Literal["always", "interval", "off"] = Field(
        "interval", description="when the session buffer syncs to disk: `always`, `interval` (1 s) or `off`"
    )
    buffer_max_bytes: int = Field(
        1_073_741_824, ge=10_000, description="most bytes in the session buffer; beyond that, appends fail"
    )

    hook_namespace: str | None = Field(
        None, description="namespace of a coding agent's hook; unset: the project folder's name and a hash of its path"
    )
    hook_context_tokens: int = Field(
        1_500, ge=1, le=20_000, description="longest context at the beginning of a coding agent's session, tokens"
    )

    hook_observe: bool = Field(
        True, description="observe a coding agent's sessions, so that they go on after a compaction"
    )

    lease_seconds: float = Field(10.0, ge=0.2, description="seconds a running claim stays valid without a heartbeat")
    max_attempts: int = Field(5, ge=1, description="crashes plus unknown errors before a job is a dead letter")
    retry_for: float = Field(86_400.0, ge=0, description="seconds for which a job with passing errors is retried")
    shutdown_grace: float = Field(
        25.0, ge=0, description="seconds that a worker which shuts down waits for its runs; then it gives them back"
    )
    namespace_concurrency: int = Field(16, ge=1, description="largest number of runs of one namespace at a time")

    derive_batch_tokens: int = Field(2_000, ge=1, description="most message tokens in one derivation call")
    derive_min_tokens: int = Field(512, ge=0, description="new tokens at which an open session is derived at once")
    derive_max_wait: float = Field(
        10.0, ge=0, description="seconds that a message waits to be derived with others; a reflection waits at most 5"
    )
    derive_context_messages: int = Field(6, ge=0, description="earlier messages shown to the model, context only")
    reflect_min_new: int = Field(5, ge=1, description="unreflected facts that start a reflection")
    digest_min_messages: int = Field(8, ge=1, description="new messages at which an open session is digested")
    digest_short_tokens: int = Field(
        600, ge=20, description="longest short digest, tokens; also new tokens at which an open session is digested"
    )
    digest_long_tokens: int = Field(1_800, ge=50, description="longest long digest, tokens")
    digest_chunk_tokens: int = Field(
        8_000, ge=500, description="most new tokens digested in one call; more are digested in chunks and merged"
    )

    extract_batch_tokens: int = Field(12_000, ge=100, description="most message tokens in one extraction call")
    extract_shown_tokens: int = Field(
        4_000,
        ge=0,
        description="tokens of existing topics that the model sees in full when it writes topics, the nearest first",
    )

    namespaces: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="the only namespaces that clients, commands and MCP may use, with commas between; unset: all"
    )
    mcp_token: SecretStr | None = Field(None, description="token that MCP clients must send over HTTP")
    http_token: SecretStr | None = Field(None, description="the operator's token for the HTTP API of `nexus serve`")
    webhook_private: bool = Field(
        False, description="let webhooks call private addresses, and `http://`: only on a network of your own"
    )
    http_rate: float = Field(
        100.0, ge=0, description="requests per second of a token to each process of `nexus serve`; 0: any number"
    )
    http_origins: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="web origins that may call the HTTP API (CORS), with commas between; unset: none"
    )

    observation_message_tokens: int = Field(
        30_000, ge=1, description="tokens of messages after the observation log at which notes move into it"
    )
    observation_buffer_tokens: int = Field(
        6_000,
        ge=0,
        description="tokens at which a job writes notes, and newest tokens kept word for word; 0: no background notes",
    )
    observation_block_after_tokens: int = Field(
        36_000, ge=1, description="tokens of messages without notes at which a read waits for the notes"
    )
    observation_max_batch_tokens: int = Field(
        10_000, ge=1, description="most message tokens in one model call that writes notes"
    )
    previous_observer_tokens: int = Field(
        2_000, ge=0, description="tokens of earlier notes that the model sees when it writes notes"
    )
    reflection_observation_tokens: int = Field(
        40_000, ge=1, description="tokens of the observation log at which the condensed log replaces it"
    )
    reflection_buffer_activation: float = Field(
        0.5,
        gt=0,
        le=1,
        description="share of `NEXUS_REFLECTION_OBSERVATION_TOKENS` at which a job condenses the log in advance",
    )
    reflection_block_after_tokens: int = Field(
        48_000, ge=1, description="tokens of the observation log at which a read waits for the condensed log"
    )

    @field_validator("model", mode="before")
    @classmethod
    def _provider(cls, given: Any) -> Any:
        return "openai" if given == "openai-compatible" else given  # as the embedder of such servers is called

    @field_validator("home")
    @classmethod
    def _home_of_a_user(cls, home: Path) -> Path:
        try:
            home = home.expanduser()
        except RuntimeError as error:  # `~NAME` of a user that does not exist
            raise ValueError(str(error).rstrip(".")) from None
        return Path(_from_the_root(str(home)))

    @field_validator("cells")
    @classmethod
    def _cells_of_a_user(cls, given: str | None) -> str | None:
        return given if given is None or given.lstrip().startswith("{") else _from_the_root(given)

    @field_validator("namespaces", "http_origins", mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        return tuple(filter(None, map(str.strip, given.split(",")))) if isinstance(given, str) else given

    @field_validator("namespaces")
    @classmethod
    def _namespaces(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if not NAMESPACE.fullmatch(name):
                raise ValueError(f"{name!r:.200} is no name of a namespace")
        return names

    @field_validator("database_url", "redis_url", "broker_url")
    @classmethod
    def _well_formed(cls, url: SecretStr | None) -> SecretStr | None:
        return url and SecretStr(escape_password(url.get_secret_value()))

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, mask_url(value) if isinstance(value, str) and "://" in value else value

    def checked(self) -> Settings:
        """Check that ``database_url`` and ``redis_url`` are both set or both unset. Returns these settings.

        Raises:
            ConfigurationError: only one of the two URLs is set.
        """
        if (self.database_url is None) != (self.redis_url is None):
            unset = "NEXUS_DATABASE_URL" if self.database_url is None else "NEXUS_REDIS_URL"
            raise ConfigurationError(
                f"{unset} is not set, but the other server's URL is.",
                remedy="Set both URLs to use your own servers, or neither to use the embedded servers.",
            )
        return self

    @property
    def embedded(self) -> bool:
        """Whether the embedded Postgres and Redis are used. They are used when no URL is set."""
        return self.database_url is None and self.redis_url is None

    def price_of(self, model: str) -> Price:
        """The prices of ``model`` in USD per million tokens: 0 for a model without a row (see :meth:`has_price`)."""
        return self.prices.get(model) or PRICES.get(model) or (0.0, 0.0, 0.0, 0.0)

    def has_price(self, model: str) -> bool:
        """Whether the price of ``model`` is known. A namespace with a budget calls no other model."""
        return model in self.prices or model in PRICES or model in FREE


def load_settings() -> Settings:
    """Read the settings from the environment's ``NEXUS_*`` variables.

    Raises:
        ConfigurationError: a variable does not parse, or only one of ``NEXUS_DATABASE_URL`` and ``NEXUS_REDIS_URL`` is
            set.
    """
    settings = _read({})
    if settings.cell is None:
        return settings.checked()
    if settings.cells is None:
        raise ConfigurationError("NEXUS_CELL is set, but NEXUS_CELLS is not.", remedy="Set NEXUS_CELLS to the file.")
    return cell_settings(read_cells(settings.cells), settings.cell)


def refuse_several(settings: Settings) -> None:
    """Check that settings which name a file of cells also name one cell of it.

    Raises:
        ConfigurationError: they name no cell, so they describe no single deployment.
    """
    if settings.cells and not settings.cell:
        raise ConfigurationError(
            "NEXUS_CELLS names several deployments, and this needs one of them.",
            remedy="Set NEXUS_CELL for a worker or a command. A program calls Nexus(), and for a job"
            " derive_memory.on(nexus.cells.deployment_of(namespace)).delay(...).",
        )


def cell_settings(file: CellsFile, name: str) -> Settings:
    """The settings of a cell: those in the file of cells, and else those of the environment.

    Raises:
        ConfigurationError: there is no such cell, or a setting of the cell does not parse.
    """
    if name not in file.cells:
        raise ConfigurationError(
            f"There is no cell {name!r}.", remedy=f"The cells are {', '.join(sorted(file.cells))}."
        )
    given = file.cells[name]
    if unknown := sorted(given.keys() - (Settings.model_fields.keys() - {"cells", "cell"})):
        raise ConfigurationError(f"The cell {name} has unknown settings: {', '.join(unknown)}.")
    return _read({**given, "cell": name}).checked()


def _read(given: Mapping[str, Any]) -> Settings:
    """Settings with the values ``given``, and else with those of the environment."""
    # An empty variable counts as unset. Here that would open every namespace where ``$TENANT`` was forgotten.
    if os.environ.get("NEXUS_NAMESPACES") == "":
        raise ConfigurationError(
            "NEXUS_NAMESPACES is empty.", remedy="Name the namespaces, or unset it to allow all of them."
        )
    try:
        return Settings(**given)
    except SettingsError as error:  # a variable of JSON, such as NEXUS_PRICES
        field = re.search(r'field "(\w+)"', str(error))
        name = f"NEXUS_{field[1].upper()}" if field else "A variable"
        raise ConfigurationError(f"Settings do not parse: {name}: it is not JSON.") from None
    except ValidationError as error:
        faults = "; ".join(f"{_variable(*e['loc'])}: {e['msg']}" for e in error.errors())
        raise ConfigurationError(f"Settings do not parse: {faults}.") from None


def _variable(name: int | str, *place: int | str) -> str:
    """The environment variable of a setting, and the place in its JSON: ``NEXUS_PRICES[claude-haiku-5-5][0]``."""
    return f"NEXUS_{str(name).upper()}{''.join(f'[{key}]' for key in place)}"


# libpq, redis-py and Celery also read passwords from options of a URL: ?password=, ?sslpassword=,
# ?ssl_keyfile_password=.
_SECRET_OPTION = re.compile(r"(?<=[?&])(\w*pass(?:word|wd|phrase)?)=[^&#]*", re.IGNORECASE)
_ADDRESSES = re.compile(r";(?=\w+://)")
_NUMERIC_PORT = re.compile(r"[^@]*(?::\d*|\])")
_UNESCAPED_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def escape_password(url: str) -> str:
    """Percent-encode the characters of the user and password in ``url`` that would end them, such as ``@ : / ? #``.

    Without this, a client would read the end of the password ``p@ss`` as the name of the host, and print it in an
    error. A percent sign before two hexadecimal digits counts as an escape and stays. In a list of Sentinels' addresses
    each address is escaped.
    """
    return ";".join(_escape(one) for one in _ADDRESSES.split(url))


def _escape(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    end = _end_of_user(rest)
    if not separator or end < 0:
        return url
    user, colon, password = rest[:end].partition(":")
    return f"{scheme}://{_quoted(user)}{colon}{_quoted(password)}{rest[end:]}"


def _end_of_user(rest: str) -> int:
    """The position of the ``@`` after user and password in ``rest``, an URL without its scheme; -1 without a user.

    The last ``@`` before the options is meant, because a password may contain ``@`` and ``/``. A name of a database
    with an ``@`` must therefore be escaped.
    """
    if rest.startswith("/"):  # the path of a socket
        return -1
    head = rest.partition("?")[0]
    if "@" in head or _NUMERIC_PORT.fullmatch(head.partition("/")[0]) or ":" not in head:
        return head.rfind("@")
    return rest.rfind("@")  # what stands where the port would is no number: the password contains a question mark


def _quoted(text: str) -> str:
    return quote(_UNESCAPED_PERCENT.sub("%25", text), safe="%!$&'()*+,;=")


def mask_url(url: str) -> str:
    """Replace every password in ``url`` by ``***``. A list of Sentinels' addresses is masked address by address.

    SQLAlchemy's ``hide_password`` and kombu's ``maybe_sanitize_url`` do not suffice. Each function either drops the
    URL's options, or shows a password in an option or in the second address of a list.
    """
    return ";".join(_mask(one) for one in _ADDRESSES.split(url))


def _mask(url: str) -> str:
    scheme, separator, rest = _SECRET_OPTION.sub(r"\1=***", url).partition("://")
    user, colon, _ = rest[: (end := _end_of_user(rest))].partition(":")
    return f"{scheme}://{user}:***{rest[end:]}" if separator and end >= 0 and colon else f"{scheme}{separator}{rest}"
