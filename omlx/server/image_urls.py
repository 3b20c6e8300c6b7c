"""Images that a request names by URL, where the server may fetch them (setting `allow_image_urls`).

A URL from a client can point anywhere, so a fetch goes to public addresses only: the name is resolved here, every
address it has is checked, and the connection is made to the address that was checked, so that a second look-up
cannot give another one. Redirects are followed by the same rules. Size and time are bounded. What comes back is not
trusted either: the runner decodes it like any other image.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx

from omlx.protocols.http_error import HTTPError

MOST_URLS: Final = 32
"""In one request."""
MOST_BYTES: Final = 50 * 1000 * 1000
MOST_SECONDS: Final = 20.0
"""For all images of a request together."""
MOST_REDIRECTS: Final = 3
_DEEPEST = 8
_PROTOCOLS = ipaddress.ip_network("192.0.0.0/24")
"""Of the network itself; some clouds tell machines their secrets there. Not every Python counts it as private."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the open internet, whatever IPv4 address it may hold within."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return is_public(str(inner))
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if ip.is_site_local:
            return False
    elif ip in _PROTOCOLS:
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


class ImageFetcher:
    """Fetches images. `allowed` says of an IP address whether it may be connected to."""

    def __init__(self, allowed: Callable[[str], bool] = is_public) -> None:
        self._allowed = allowed

    async def inline(self, content: Any) -> None:
        """Put the images of all parts in `content` (messages of OpenAI's or Anthropic's shape) in place of their URLs.

        Raises HTTPError.
        """
        places = list(_places(content, 0))
        if not places:
            return
        if len(places) > MOST_URLS:
            raise HTTPError(400, f"the request has {len(places)} image URLs; {MOST_URLS} are fetched at most")
        try:
            client = httpx.AsyncClient(trust_env=False, timeout=MOST_SECONDS)
            async with asyncio.timeout(MOST_SECONDS), client:
                room = MOST_BYTES
                for url, put in places:
                    data = await self._fetch(client, url, room)
                    room -= len(data)
                    put(data)
        except TimeoutError:
            raise HTTPError(400, f"the images could not be fetched within {MOST_SECONDS:.0f} seconds") from None

    async def _fetch(self, client: httpx.AsyncClient, url: str, room: int) -> bytes:
        for _ in range(MOST_REDIRECTS + 1):
            request = await self._request(client, url)
            try:
                response = await client.send(request, stream=True)
            except httpx.HTTPError as error:
                raise HTTPError(400, f"an image could not be fetched: {error or type(error).__name__}") from None
            try:
                if response.is_redirect:
                    url = urljoin(url, response.headers.get("location", ""))
                    continue
                if response.status_code != 200:
                    raise HTTPError(400, f"an image could not be fetched: its server answered {response.status_code}")
                return await _read(response, room)
            finally:
                await response.aclose()
        raise HTTPError(400, f"an image could not be fetched: more than {MOST_REDIRECTS} redirects")

    async def _request(self, client: httpx.AsyncClient, url: str) -> httpx.Request:
        """A request to an address that was checked. Raises HTTPError."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host = ""
        if not host or parts.scheme not in {"http", "https"} or parts.username is not None:
            raise HTTPError(400, "an image URL must be http or https, without a user name")
        port = port or (443 if parts.scheme == "https" else 80)
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise HTTPError(400, f"an image could not be fetched: there is no host {host}") from None
        addresses = [str(entry[4][0]) for entry in infos]
        if not addresses or not all(map(self._allowed, addresses)):
            raise HTTPError(400, f"an image may not be fetched from {host}: its address is not public")
        address = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
        target = httpx.URL(url).copy_with(netloc=f"{address}:{port}".encode())
        named = f"[{host}]" if ":" in host else host
        named = f"{named}:{port}" if parts.port else named
        headers = {"Host": named, "Accept": "image/*", "Accept-Encoding": "identity"}
        return client.build_request("GET", target, headers=headers, extensions={"sni_hostname": host})


async def _read(response: httpx.Response, room: int) -> bytes:
    data = bytearray()
    try:
        async for part in response.aiter_raw():
            data += part
            if len(data) > room:
                raise HTTPError(400, f"the fetched images have more than {MOST_BYTES:,} bytes")
    except httpx.HTTPError as error:
        raise HTTPError(400, f"an image could not be fetched: {error or type(error).__name__}") from None
    return bytes(data)


def _places(content: Any, depth: int) -> Iterator[tuple[str, Callable[[bytes], None]]]:
    """Every URL of an image in a message's parts, and how to put the image there instead."""
    if depth > _DEEPEST:
        return
    if isinstance(content, list):
        for item in content:
            yield from _places(item, depth + 1)
        return
    if not isinstance(content, dict):
        return
    match content:
        case {"type": "image_url" | "input_image", "image_url": str(url)} if _is_remote(url):
            yield url, lambda data: content.update(image_url=_data_uri(data))
        case {"type": "image_url" | "input_image", "image_url": {"url": str(url)}} if _is_remote(url):
            yield url, lambda data: content.update(image_url={"url": _data_uri(data)})
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            yield url, lambda data: content.update(source={"type": "base64", "data": _text(data)})
        case {"content": inner} | {"output": inner}:
            yield from _places(inner, depth + 1)


def _is_remote(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _data_uri(data: bytes) -> str:
    return "data:;base64," + _text(data)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
