"""Checks the templates of a new model by rendering a plain conversation.

The check runs when the model is created, so that its author sees the error and not a later user. A template that
refuses the conversation itself (`raise_exception`) passes: it is meant for other conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from omlx_registry.templates import ChatTemplates

from omlx.messages.request import GenerateRequest, Message
from omlx.prompting.errors import TemplateError, TemplateRefused

if TYPE_CHECKING:
    from omlx.runner.rendering import Renderers

# Renderers are imported in the functions: Jinja takes a fifth of a server's start, and models are seldom created.
_REMEDY = "correct the template in the model's files, or set TEMPLATE in the Modelfile"


def check_go_template(source: str) -> None:
    """Raises ValueError, with Go's message, if a Modelfile's TEMPLATE does not parse or fails."""
    from omlx.prompting.template import PromptTemplate  # see above

    try:
        PromptTemplate.from_go(source).render(_plain())
    except TemplateError as error:
        raise ValueError(str(error)) from None


def check_chat_templates(templates: ChatTemplates, names: Mapping[str, str], kept: Renderers | None = None) -> None:
    """Raises ValueError, with a message for the user, if a Jinja template is invalid, fails or exceeds its limits.

    `names`: the special tokens that it may use, such as `bos_token`. `kept`: renderers that stay for later checks.
    """
    if not templates.default:
        return
    # See above.
    from omlx.prompting.template import PromptTemplate
    from omlx.runner.rendering import IsolatedTemplate, Renderers

    renderers = kept or Renderers()
    try:
        compiled = partial(IsolatedTemplate, renderers=renderers)
        template = PromptTemplate.from_jinja(
            templates.default, variables=names, with_tools=templates.tool_use, compiled=compiled
        )
        template.render(_plain())
    except TemplateRefused:
        pass
    except TemplateError as error:
        raise ValueError(f"{error}: {_REMEDY}") from None
    finally:
        if kept is None:
            renderers.close()


def _plain() -> GenerateRequest:
    return GenerateRequest(id=0, messages=[Message(role="user", content="Hello")])
