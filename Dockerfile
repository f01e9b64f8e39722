# The image of the services in docker-compose.yml. The first stage builds, and the second gets its result alone: no
# source, no file of .git and no file with a secret is in any layer (see .dockerignore).
FROM python:3.12-slim AS build
WORKDIR /src
COPY requirements-build.txt requirements-image.txt ./
# pip installs nothing whose hash is not in these files (`make hashes` writes them). The package itself is built from the
# source here, by a build backend that is checked in the same way.
RUN python -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes -r requirements-build.txt \
 && python -m venv /venv && /venv/bin/pip install --no-cache-dir --require-hashes -r requirements-image.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY nexus_tasks nexus_tasks
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /venv/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM python:3.12-slim
RUN useradd --create-home nexus && mkdir --mode 0700 /data && chown nexus /data
COPY --from=build /venv /venv
COPY celeryconfig.py docker-entrypoint.sh /app/
WORKDIR /app
USER nexus
ENV NEXUS_HOME=/data PATH=/venv/bin:$PATH
ENTRYPOINT ["sh", "/app/docker-entrypoint.sh"]
CMD ["celery", "-A", "nexus_tasks", "worker", "--loglevel", "INFO"]
