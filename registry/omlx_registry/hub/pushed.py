"""A pushed model: what a repository holds beside the model's files so that a pulled copy answers as the original does.

`omlx.json` says all that a manifest does around the weights: template, system prompt, parameters, messages, licences.
`Modelfile` says the same for people and for Ollama, as far as a Modelfile can. Adapter and draft model lie in folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from omlx_registry.create import CreateSpec, Info
from omlx_registry.describe import folder_modelfile
from omlx_registry.errors import InvalidModel, PullError
from omlx_registry.manifest import ADAPTER, DRAFT, FOLDERS
from omlx_registry.names import Name
from omlx_registry.spec import ModelSpec

DESCRIPTION: Final = "omlx.json"
ADAPTER_FOLDER: Final = FOLDERS[ADAPTER]
DRAFT_FOLDER: Final = FOLDERS[DRAFT]
_LONGEST: Final = 16 << 20
_LARGEST_FILE: Final = 50 * 10**9
"""Bytes of a file that the Hub takes."""


class PushedModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of `omlx.json`."""

    version: int = 1
    template: str | None = None
    system: str = ""
    parameters: dict[str, Any] = {}
    messages: list[dict[str, str]] = []
    licenses: list[str] = []
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    info: Info = Info()


def describe_pushed(spec: ModelSpec, capabilities: list[str]) -> PushedModel:
    """`capabilities`: those that the maker of the model stated."""
    return PushedModel(
        template=spec.template,
        system=spec.system,
        parameters=spec.parameters,
        messages=spec.messages,
        licenses=spec.licenses,
        renderer=spec.renderer,
        parser=spec.parser,
        requires=spec.requires,
        info=Info(
            capabilities=capabilities,
            model_family=spec.details.family,
            quantization_level=spec.details.quantization_level,
            parameter_size=spec.details.parameter_size,
            context_length=spec.context_length,
            embedding_length=spec.embedding_length,
        ),
    )


def write_pushed(folder: Path, spec: ModelSpec, capabilities: list[str]) -> None:
    """Put the descriptions beside the model's files in `folder`. Raises PullError where a file cannot be pushed."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size > _LARGEST_FILE:
            raise PullError(
                f"{path.name} has {path.stat().st_size / 1e9:.1f} GB and Hugging Face takes files up to 50 GB: "
                "nothing was uploaded"
            )
    description = msgspec.json.encode(describe_pushed(spec, capabilities))
    (folder / DESCRIPTION).write_bytes(msgspec.json.format(description, indent=2))
    (folder / "Modelfile").write_text(folder_modelfile(spec))
    if spec.licenses and not (folder / "LICENSE").exists():
        (folder / "LICENSE").write_text("\n\n".join(spec.licenses))


def request_of(name: Name, files: Mapping[str, str], description: Path, quantize: str) -> CreateSpec:
    """How to make the pushed model again. `files`: path in the repository → digest. Raises InvalidModel."""
    try:
        if description.stat().st_size > _LONGEST:
            raise InvalidModel(f"{DESCRIPTION} of the repository is too long")
        pushed = msgspec.json.decode(description.read_bytes(), type=PushedModel)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidModel(f"{DESCRIPTION} of the repository cannot be read: {error}") from error
    if pushed.version != 1:
        raise InvalidModel(f"{DESCRIPTION} of the repository was written by a newer oMLX: update oMLX")

    def inside(folder: str) -> dict[str, str]:
        return {path.removeprefix(folder): digest for path, digest in files.items() if path.startswith(folder)}

    return CreateSpec(
        model=name.full,
        files={
            path: digest
            for path, digest in files.items()
            if not is_beside(path) and path != DESCRIPTION and not (path.upper() == "LICENSE" and pushed.licenses)
        },
        adapters=inside(ADAPTER_FOLDER),
        draft_files=inside(DRAFT_FOLDER),
        template=pushed.template or "",
        system=pushed.system,
        parameters=pushed.parameters,
        messages=[dict(message) for message in pushed.messages],
        license=pushed.licenses,
        renderer=pushed.renderer,
        parser=pushed.parser,
        requires=pushed.requires,
        quantize=quantize,
        info=msgspec.structs.replace(pushed.info, quantization_level="") if quantize else pushed.info,
    )


def is_beside(path: str) -> bool:
    """Whether a path is in the folder of the adapter or of the draft model."""
    return path.startswith((ADAPTER_FOLDER, DRAFT_FOLDER))
