"""Models behind OpenAI's Chat Completions API, through OpenAI's SDK: OpenAI, Azure, vLLM, Ollama, LM Studio, gateways.

``model.py`` has the class that the jobs use.
"""

from nexus_tasks.llm.openai.client import credentials_found
from nexus_tasks.llm.openai.model import OpenAIModel

__all__ = ["OpenAIModel", "credentials_found"]
