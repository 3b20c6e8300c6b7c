"""The bundled package as a source of models: what `bundled` finds is converted in a worker and put into the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from omlx_registry import bundled
from omlx_registry.assemble import Overrides, Texts
from omlx_registry.conversion import convert
from omlx_registry.names import Name
from omlx_registry.spec import Progress
from omlx_registry.store import Store
from omlx_registry.worker_client import ImportGguf


class BundledSource:
    """See `registry.Source`."""

    def offers(self, name: Name) -> bool:
        return bundled.offers(name.full)

    async def pull(self, name: Name, store: Store, *, insecure: bool) -> AsyncGenerator[Progress]:
        del insecure  # No network here.
        with store.working(), store.workspace() as folder:
            steps = convert(
                store,
                name,
                ImportGguf(str(bundled.path()), str(folder)),
                folder,
                overrides=Overrides(source=f"package {bundled.DISTRIBUTION}"),
                texts=Texts(licenses=[bundled.license_text()]),
            )
            async with aclosing(steps):
                async for step in steps:
                    yield step
