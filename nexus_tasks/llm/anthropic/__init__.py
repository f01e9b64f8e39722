"""Claude as a language model, through Anthropic's SDK. ``model.py`` has the class that the jobs use."""

from nexus_tasks.llm.anthropic.client import credentials_found
from nexus_tasks.llm.anthropic.errors import job_error
from nexus_tasks.llm.anthropic.messages import completion, request_params
from nexus_tasks.llm.anthropic.model import AnthropicModel

__all__ = ["AnthropicModel", "completion", "credentials_found", "job_error", "request_params"]
