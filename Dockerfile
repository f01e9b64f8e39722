# The image of the services in docker-compose.yml. The first stage builds, and the second gets its result alone: no
# source, no file of .git and no file with a secret is in any layer (see .dockerignore).
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY nexus_tasks nexus_tasks
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --constraint constraints.txt '.[flower]'

FROM python:3.12-slim
RUN useradd --create-home nexus && mkdir --mode 0700 /data && chown nexus /data
COPY --from=build /venv /venv
COPY celeryconfig.py docker-entrypoint.sh /app/
WORKDIR /app
USER nexus
ENV NEXUS_HOME=/data PATH=/venv/bin:$PATH
ENTRYPOINT ["sh", "/app/docker-entrypoint.sh"]
CMD ["celery", "-A", "nexus_tasks", "worker", "--loglevel", "INFO"]
