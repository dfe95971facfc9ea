"""Protects agents from prompt injection through tool results; experimental and opt-in. `security.pyi` declares the names.

Each tool result is labelled with its integrity (trusted or possibly written by outsiders) and confidentiality (who may see it). After an
agent has read untrusted content, its calls of tools with external effects are refused or need a person's approval. The key `security` of an
agent file configures the same protection (docs/agents.md).
"""

from __future__ import annotations

from gateway.lazy import lazy_names

__getattr__ = lazy_names(__name__)
