"""What this layer raises. A *template error* is a prompt that cannot be made, said so that a user understands it."""

from __future__ import annotations


class TemplateError(Exception):
    """A chat template is malformed, refuses the conversation, or takes more time or room than it may."""


class TemplateTooSlow(TemplateError):
    """It took more time than it may. Trying again in another way would take as long."""


class TemplateRefused(TemplateError):
    """The template itself refuses this conversation, by `raise_exception`."""


MOST_SOURCE = 1 << 18
"""Characters of a template. The longest that a model is known to have is 40,000."""
MAX_CPU_S = 2.0
"""CPU seconds one rendering may take. A long conversation needs milliseconds."""
