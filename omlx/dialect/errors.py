"""What this layer raises. A *template error* is a prompt that cannot be made, said so that a user understands it."""

from __future__ import annotations


class TemplateError(Exception):
    """A chat template is malformed, refuses the conversation, or takes more time or room than it may."""
