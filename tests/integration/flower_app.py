"""The application that Flower is started with in tests: the default deployment's, with the tests' job kinds."""

from __future__ import annotations

import tests.integration.jobkinds  # noqa: F401 - declares the kinds
from nexus_tasks.deployment import default_deployment

app = default_deployment().app
