"""Describing: from a stored manifest to the spec a server works with, and to what `show` prints.

Reads the small blobs only (config, texts); weights headers just for a verbose `show`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from omlx_registry.architecture import model_info, projector_info
from omlx_registry.assemble import overrides_of, read_texts
from omlx_registry.errors import Damaged, InvalidModel, reason
from omlx_registry.goformat import go_text, print_parameters
from omlx_registry.manifest import ADAPTER, DRAFT, FOLDERS, TEMPLATE, ImageConfig, ModelMetadata
from omlx_registry.manifest_folder import ManifestFile
from omlx_registry.metadata import REVISION, Files, find_out
from omlx_registry.modelfile import ROLES, Instruction, print_commands
from omlx_registry.spec import Details, ModelShow, ModelSpec
from omlx_registry.store import Store
from omlx_registry.weights import take_census

NO_TEMPLATE = "{{ .Prompt }}"
"""What a model without any template does with a prompt."""
_PARAMETER_NAME = re.compile(r"[A-Za-z0-9_]+")
_config_decoder = msgspec.json.Decoder(ImageConfig)
_VISION_PREFIXES = (
    "vision_tower.",
    "vision_model.",
    "visual.",
    "model.vision_tower.",
    "model.visual.",
    "multi_modal_projector.",
)


def describe(store: Store, stored: ManifestFile) -> ModelSpec:
    """The spec of a stored model. Raises Damaged where a blob it needs is gone or unreadable."""
    manifest, name = stored.manifest, stored.entry.name
    try:
        config = read_config(store, stored)
        texts = read_texts(manifest, store.blobs)
        facts = config.omlx
        if facts is None or facts.revision != REVISION:
            facts = _derive_again(store, stored, config)
    except (OSError, msgspec.MsgspecError, InvalidModel) as error:
        raise Damaged(f"model '{name.short}' is damaged: {reason(error, store.root)}") from error
    folder = str(store.views.path(stored.digest))
    types = {layer.media_type for layer in manifest.layers}
    return ModelSpec(
        name=name.short,
        full_name=name.full,
        digest=stored.digest,
        path=folder,
        fingerprint=facts.fingerprint,
        size=manifest.size,
        modified_at=datetime.fromtimestamp(stored.entry.mtime_ns / 1e9, UTC).astimezone(),
        details=Details(
            parent_model=facts.parent_model,
            format=config.model_format,
            family=config.model_family,
            families=config.model_families,
            parameter_size=config.model_type,
            quantization_level=config.file_type,
        ),
        capabilities=facts.capabilities,
        context_length=config.context_length,
        embedding_length=config.embedding_length,
        parameter_count=facts.parameter_count,
        template=texts.template,
        chat_template=facts.chat_template or None,
        system=texts.system,
        parameters=texts.parameters,
        messages=texts.messages,
        licenses=texts.licenses,
        renderer=config.renderer,
        parser=config.parser,
        requires=config.requires,
        adapter_path=f"{folder}/{FOLDERS[ADAPTER].rstrip('/')}" if ADAPTER in types else None,
        draft_path=f"{folder}/{FOLDERS[DRAFT].rstrip('/')}" if DRAFT in types else None,
        source=facts.source,
    )


def read_config(store: Store, stored: ManifestFile) -> ImageConfig:
    """The config blob. Raises OSError or msgspec.MsgspecError."""
    return _config_decoder.decode(store.blobs.read(stored.manifest.config.digest))


def show(
    store: Store, stored: ManifestFile, spec: ModelSpec, *, verbose: bool, options: Mapping[str, Any] | None = None
) -> ModelShow:
    """Everything `show` prints; `options` are further parameters for the Modelfile, and for it only, as in Ollama.

    Raises Damaged where config.json or, for a verbose one, the weights are unreadable.
    """
    try:
        files = Files(stored.manifest.layers, store.blobs)
        config = files.config()
        need_tensors = verbose or bool(config.get("vision_config"))
        tensors = files.tensors() if need_tensors else []
    except (OSError, InvalidModel) as error:
        raise Damaged(f"model '{spec.name}' is damaged: {reason(error, store.root)}") from error
    info = model_info(config, spec.parameter_count)
    family = str(info["general.architecture"])
    # Figures that the maker of the model overrode win over those of config.json.
    for key, value in (("context_length", spec.context_length), ("embedding_length", spec.embedding_length)):
        if value:
            info[f"{family}.{key}"] = value
    vision = take_census((it for it in tensors if it.name.startswith(_VISION_PREFIXES)), config).parameter_count
    return ModelShow(
        spec=spec,
        modelfile=print_modelfile(msgspec.structs.replace(spec, parameters={**spec.parameters, **(options or {})})),
        parameters_text=print_parameters(spec.parameters),
        template_text=spec.template or spec.chat_template or NO_TEMPLATE,
        model_info=info,
        projector_info=projector_info(config, vision),
        tensors=[{"name": it.name, "type": it.dtype, "shape": list(it.shape)} for it in tensors] if verbose else None,
    )


def print_modelfile(spec: ModelSpec) -> str:
    """The Modelfile that makes this model again from itself, as Ollama prints one for a safetensors model."""
    commands = [Instruction("from", spec.name)]
    if spec.template is not None:
        commands.append(Instruction("template", spec.template))
    elif spec.chat_template is None:
        commands.append(Instruction("template", NO_TEMPLATE))
    if spec.system:
        commands.append(Instruction("system", spec.system))
    commands += [
        Instruction(name, text) for name, text in (("renderer", spec.renderer), ("parser", spec.parser)) if text
    ]
    for name, value in spec.parameters.items():
        if not _PARAMETER_NAME.fullmatch(name):
            continue  # The API takes any; a Modelfile has no way to write this one.
        values = value if isinstance(value, list) else [value]
        commands += [Instruction("parameter", _parameter_text(item), name) for item in values]
    commands += [Instruction("license", text) for text in spec.licenses]
    commands += [
        Instruction("message", message["content"], message["role"])
        for message in spec.messages
        if message["role"] in ROLES
    ]
    return '# Modelfile generated by "ollama show"\n' + print_commands(commands)


def folder_modelfile(spec: ModelSpec) -> str:
    """The Modelfile that makes this model again from the folder it stands in, which holds the model's files."""
    lines = print_modelfile(msgspec.structs.replace(spec, name="."))
    if spec.adapter_path:
        lines += f"ADAPTER ./{FOLDERS[ADAPTER].rstrip('/')}\n"
    if spec.draft_path:
        lines += f"DRAFT ./{FOLDERS[DRAFT].rstrip('/')}\n"
    return lines


def _parameter_text(value: object) -> str:
    # Whole numbers in full: Go's 1e+06 would not read back as an integer.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else go_text(value)


def _derive_again(store: Store, stored: ManifestFile, config: ImageConfig) -> ModelMetadata:
    overrides = overrides_of(config)
    templates = stored.manifest.of_type(TEMPLATE)
    return find_out(
        stored.manifest.layers,
        store.blobs,
        template=store.blobs.read(templates[-1].digest).decode(errors="replace") if templates else None,
        explicit_capabilities=overrides.capabilities,
        parent_model=overrides.parent_model,
        source=overrides.source,
    ).facts
