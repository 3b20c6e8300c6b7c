"""Parses multipart/form-data with files, with the size limits of any other body."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from omlx.protocols.http_error import HTTPError
from omlx.server.body import read_bytes
from omlx.server.body_memory import SMALL, BodyReservation
from omlx.server.dependencies import HttpRequest
from omlx.server.inflate import inflate
from omlx.server.route_info import body_limit

_MOST_PARTS = 100
_MOST_FIELD = 100_000
"""Bytes of one field without a file name."""


class FormFile(NamedTuple):
    name: str
    """The client's file name; "" if there is none."""
    content: bytes


class Form(NamedTuple):
    """The fields and the files of a form, by name, in their order."""

    fields: Mapping[str, list[str]]
    files: Mapping[str, list[FormFile]]

    def text(self, name: str) -> str:
        """The last value of a field, stripped; "" if it is missing."""
        return self.fields.get(name, [""])[-1].strip()


def boundary_of(content_type: str) -> str:
    """The boundary of multipart/form-data; "" if the Content-Type is another, or has none."""
    kind, options = parse_options_header(content_type)
    return str(options.get("boundary") or "") if kind == "multipart/form-data" else ""


async def read_form(request: HttpRequest, max_body: int) -> Form:
    """The body as a form; the route says how much of `max_body` it takes. Raises HTTPError."""
    limit = body_limit(request.route_handler.opt["body"], max_body)
    boundary = boundary_of(request.headers.get("content-type", ""))
    body = await read_bytes(request, limit)
    if not boundary:
        raise HTTPError(400, "failed to parse multipart form: the Content-Type is not multipart/form-data")
    if encoding := request.headers.get("content-encoding", ""):
        body = await inflate(body, encoding, limit, BodyReservation.of(request.scope))
    if len(body) <= SMALL:
        return parse_form(body, boundary)
    form = await asyncio.to_thread(parse_form, body, boundary)
    # Only the files are kept from now on, for as long as the answer takes.
    BodyReservation.of(request.scope).settle(sum(len(file.content) for files in form.files.values() for file in files))
    return form


def parse_form(body: bytes, boundary: str) -> Form:
    """Parse a complete body. Raises HTTPError."""
    fields: dict[str, list[str]] = {}
    files: dict[str, list[FormFile]] = {}
    segment: MultipartSegment | None = None
    pieces: list[bytes] = []
    size = 0
    try:
        with PushMultipartParser(boundary, content_length=len(body), max_segment_count=_MOST_PARTS) as parser:
            for event in parser.parse(body):
                if isinstance(event, MultipartSegment):
                    segment, pieces, size = event, [], 0
                elif event is not None:
                    pieces.append(bytes(event))
                    size += len(event)
                    if segment is not None and segment.filename is None and size > _MOST_FIELD:
                        raise HTTPError(
                            400, f"the form field {segment.name[:100]!r} is longer than {_MOST_FIELD:,} bytes"
                        )
                elif segment is not None:
                    content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                    if segment.filename is not None:
                        files.setdefault(segment.name, []).append(FormFile(segment.filename, content))
                    else:
                        fields.setdefault(segment.name, []).append(content.decode("utf-8", "replace"))
    except MultipartError as error:
        raise HTTPError(400, f"failed to parse multipart form: {error.args[0]}") from None
    return Form(fields, files)
