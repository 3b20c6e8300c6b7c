"""Models on disk: names, manifests, content-addressed blobs, and how models get there.

A library of its own: it imports neither omlx nor MLX, and opens nothing heavy until it is used.
"""

from omlx_registry.assemble import Overrides, Texts
from omlx_registry.create import CreateSpec, Info
from omlx_registry.errors import (
    CreateError,
    Damaged,
    DigestMismatch,
    InvalidDigest,
    InvalidModel,
    InvalidName,
    ModelfileError,
    NotFound,
    PullError,
    RegistryError,
    StorageError,
    storage_errors,
)
from omlx_registry.hub.outdated import commit_of
from omlx_registry.integrity import Damage, VerifyReport
from omlx_registry.names import Name, parse_name
from omlx_registry.ollama.importer import ImportSpec
from omlx_registry.registry import Registry, Source
from omlx_registry.spec import Details, ImportStep, ModelFile, ModelShow, ModelSpec, Progress, PulledModel
from omlx_registry.store import PruneReport, Store

__all__ = [
    "CreateError",
    "CreateSpec",
    "Damage",
    "Damaged",
    "Details",
    "DigestMismatch",
    "ImportSpec",
    "ImportStep",
    "Info",
    "InvalidDigest",
    "InvalidModel",
    "InvalidName",
    "ModelFile",
    "ModelShow",
    "ModelSpec",
    "ModelfileError",
    "Name",
    "NotFound",
    "Overrides",
    "Progress",
    "PruneReport",
    "PullError",
    "PulledModel",
    "Registry",
    "RegistryError",
    "Source",
    "StorageError",
    "Store",
    "Texts",
    "VerifyReport",
    "commit_of",
    "parse_name",
    "storage_errors",
]
