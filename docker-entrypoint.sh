#!/bin/sh
# Run a command with NEXUS_REDIS_URL made from REDIS_PASSWORD. In a URL a password must be percent-encoded, and Docker
# Compose cannot do that. Postgres needs no such step: its clients read PGPASSWORD as it is.
set -eu
if [ -n "${REDIS_PASSWORD:-}" ]; then
    password=$(python -c 'import os, urllib.parse; print(urllib.parse.quote(os.environ["REDIS_PASSWORD"], safe=""))')
    export NEXUS_REDIS_URL="redis://:$password@${REDIS_HOST:-redis}:6379/0"
fi
exec "$@"
