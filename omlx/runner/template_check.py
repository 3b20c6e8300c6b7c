"""Whether the templates of a new model can be used: a plain conversation has to come through them.

Tried when the model is made, so that its maker hears of a mistake and not who asks it later. A template that refuses
the conversation in its own words (`raise_exception`) is right: it is meant for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from omlx_registry.templates import ChatTemplates

from omlx.messages.request import GenerateRequest, Message
from omlx.prompting.errors import TemplateError, TemplateRefused

# What renders is imported where it is used: Jinja is a fifth of a server's start, and a server seldom makes a model.
_REMEDY = "correct it among the model's files, or give the model a TEMPLATE of its own"


def check_go_template(source: str) -> None:
    """Raises ValueError, with Go's message, where a Modelfile's TEMPLATE does not parse or fails."""
    from omlx.prompting.template import PromptTemplate  # see above

    try:
        PromptTemplate.from_go(source).render(_plain())
    except TemplateError as error:
        raise ValueError(str(error)) from None


def check_chat_templates(templates: ChatTemplates, names: Mapping[str, str]) -> None:
    """Raises ValueError, with a sentence, where a Jinja template cannot be read, fails, or takes more than it may.

    `names`: the special tokens that it may use, such as `bos_token`.
    """
    if not templates.default:
        return
    # See above.
    from omlx.prompting.template import PromptTemplate
    from omlx.runner.rendering import IsolatedTemplate, Renderers

    renderers = Renderers()
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
        renderers.close()


def _plain() -> GenerateRequest:
    return GenerateRequest(id=0, messages=[Message(role="user", content="Hello")])
