"""Model names: what users type, and how it maps to a place in the store.

A *name* is `[scheme://][host/][namespace/]model[:tag]`, Ollama's grammar: host defaults to `registry.ollama.ai`,
namespace to `library`, tag to `latest`. Every part is limited to characters that are harmless in a path and starts with
a letter, digit or underscore, so a valid name can never leave the folder it is looked up in.

Beyond Ollama's grammar: on the hosts of the Hugging Face Hub (`hf.co`, `huggingface.co`) a namespace may hold dots and
namespace and model may be 96 characters long, as the Hub allows, and the model may end in `@REVISION`, a branch, tag or
commit of the repository (`hf.co/ORG/REPO@v1:q4`). `ORG/REPO` needs no extension: it is a two-part name.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from omlx_registry.errors import InvalidName

DEFAULT_HOST: Final = "registry.ollama.ai"
DEFAULT_NAMESPACE: Final = "library"
DEFAULT_TAG: Final = "latest"
HUB_HOSTS: Final = frozenset({"hf.co", "huggingface.co"})

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_MODEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_TAG = _MODEL
_HUB_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
_HUB_MODEL = re.compile(rf"{_HUB_PART.pattern}(?:@{_HUB_PART.pattern})?")
_LOCAL_SUFFIX = re.compile(r":local$", re.IGNORECASE)


class Name(msgspec.Struct, frozen=True, order=True):
    """A full, valid model name. Compare `folded` for equality as Ollama sees it: letter case does not count."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def full(self) -> str:
        """`registry.ollama.ai/library/llama3:latest`."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def short(self) -> str:
        """`llama3:latest`: default host and namespace dropped, the tag always shown."""
        if self.host.lower() != DEFAULT_HOST:
            return self.full
        if self.namespace.lower() != DEFAULT_NAMESPACE:
            return f"{self.namespace}/{self.model}:{self.tag}"
        return f"{self.model}:{self.tag}"

    @property
    def folded(self) -> tuple[str, str, str, str]:
        """The parts in lower case: equal for names that mean the same model."""
        return self.host.lower(), self.namespace.lower(), self.model.lower(), self.tag.lower()

    @property
    def parts(self) -> tuple[str, str, str, str]:
        return self.host, self.namespace, self.model, self.tag

    @property
    def is_hub(self) -> bool:
        """The name says itself that it is a repository of the Hugging Face Hub."""
        return self.host.lower() in HUB_HOSTS

    @property
    def repository(self) -> str | None:
        """`ORG/REPO` where the name can be a Hub repository: a Hub host, or two parts and no host of its own."""
        if self.is_hub or (self.host.lower() == DEFAULT_HOST and self.namespace.lower() != DEFAULT_NAMESPACE):
            return f"{self.namespace}/{self.model.partition('@')[0]}"
        return None

    @property
    def revision(self) -> str:
        """The branch, tag or commit of the repository that the name asks for; "" where it asks for none."""
        return self.model.partition("@")[2]

    @property
    def is_cloud(self) -> bool:
        """The tag asks for a model that runs on Ollama's servers."""
        tag = self.tag.lower()
        return tag == "cloud" or tag.endswith("-cloud")

    def __str__(self) -> str:
        return self.short


def parse_name(text: str) -> Name:
    """The name a user typed, with defaults filled in.

    Outer white space, a scheme in front of a host and a `:local` suffix are dropped. Raises InvalidName
    (`invalid model name`, or Ollama's sentence for `:local` together with `:cloud`).
    """
    text = text.strip(" \t\r\n\v\f")
    rest = _LOCAL_SUFFIX.sub("", text)
    asked_local = rest != text
    tag = DEFAULT_TAG
    if rest.rfind(":") > rest.rfind("/"):
        rest, _, tag = rest.rpartition(":")
    *front, model = rest.rsplit("/", 2)
    namespace = front[-1] if front else DEFAULT_NAMESPACE
    host = front[0] if len(front) == 2 else DEFAULT_HOST
    if len(front) == 2 and "://" in host:
        host = host.partition("://")[2]
    name = Name(host, namespace, model, tag)
    if not is_valid(name):
        raise InvalidName(text)
    if asked_local and name.is_cloud:
        raise InvalidName(text, f'use either :local or :cloud, not both: "{text}"')
    return name


def at_revision(name: Name, revision: str) -> Name:
    """The name of the same repository at a branch, tag or commit; "" asks for none. Raises InvalidName."""
    if not revision or name.revision == revision:
        return name
    if name.repository is None:
        raise InvalidName(
            name.short, f"{name.short} is no repository, so it has no revisions: pull hf.co/ORG/NAME@{revision}"
        )
    if name.revision:
        raise InvalidName(name.short, f"{name.short} names the revision {name.revision!r}, not {revision!r}")
    host = name.host if name.is_hub else "hf.co"
    named = Name(host, name.namespace, f"{name.model}@{revision}", name.tag)
    if not is_valid(named):
        raise InvalidName(name.short, f"{revision[:100]!r} cannot be used as a revision: name a branch, tag or commit")
    return named


def is_valid(name: Name) -> bool:
    """Every part has the right length and characters."""
    on_hub = name.host.lower() in HUB_HOSTS
    namespace, model = (_HUB_PART, _HUB_MODEL) if on_hub else (_NAMESPACE, _MODEL)
    return all(
        pattern.fullmatch(part)
        for pattern, part in ((_HOST, name.host), (namespace, name.namespace), (model, name.model), (_TAG, name.tag))
    )


def name_from_path(parts: tuple[str, ...]) -> Name | None:
    """The name stored at `manifests/<host>/<namespace>/<model>/<tag>`; None where the path is no model's."""
    if len(parts) != 4:
        return None
    name = Name(*parts)
    return name if is_valid(name) else None
