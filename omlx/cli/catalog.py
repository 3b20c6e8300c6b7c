"""`omlx catalog`: the short names that a pull understands, and newer catalogs from a publisher."""

from __future__ import annotations

import os
from pathlib import Path

import rich_click as click
from omlx_registry import RegistryError, catalog_file, catalog_update

from omlx.cli.command import CliError, Count, verb
from omlx.cli.console import out
from omlx.settings import load


@verb("catalog", usage="[update]", count=Count(0, 1), environment=("models",))
@click.option("--from", "source", metavar="URL", default="", help="update: where the publisher's catalog is")
@click.option("--key", metavar="KEY", default="", help="update: the publisher's public key (Ed25519, base64)")
def command(args: tuple[str, ...], source: str, key: str) -> None:
    """Show the catalog of short names, or fetch a newer one

    `omlx catalog update --from URL --key KEY` fetches a catalog that its publisher signed; address and key are kept for
    the next `omlx catalog update`. It is kept beside the models of this machine and used at once.
    """
    folder = _folder()
    if not args:
        catalog_file.keep_in(folder)
        catalog = catalog_file.current()
        for name, family in sorted(catalog.families.items()):
            out(f"{name:<26}{', '.join(family.sizes) if family.sizes else family.refused}")
        out(f"version {catalog.version}")
        return
    if args[0] != "update":
        raise CliError(f'unknown command "{args[0]}" for "omlx catalog": use update')
    try:
        now, changed = catalog_update.update(folder, _fetch, source, key)
    except RegistryError as error:
        raise CliError(error.message) from error
    out(f"catalog {now.version}, {len(now.families)} names" if changed else f"catalog {now.version} is the newest")


def _folder() -> Path:
    return Path(load({}, os.environ).settings.models) / "omlx"


def _fetch(url: str) -> bytes:
    import httpx  # not free to import, and only `update` needs it

    try:
        answer = httpx.get(url, follow_redirects=True, timeout=30)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RegistryError(f"the catalog cannot be fetched from {url}: is the address right?") from error
    return answer.content
