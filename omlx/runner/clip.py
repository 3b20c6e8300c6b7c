"""*Clipping*: texts that no context of the model can hold lose their middle before they are sent to the runner.

A token has at most so many characters, so a text beyond a number of characters is too long for the longest context,
whatever its words. Of such a text only the first and the last tokens can matter, and encoding, sending and decoding the
rest would stop the other requests of both processes.
"""

from __future__ import annotations

import msgspec

from omlx.messages.request import GenerateRequest, Message


def clip(text: str, most: int) -> str:
    """`text` without its middle where it is far beyond `most` characters: its beginning and its end, each of more than
    `most`, so that it is still too long. `most` 0: not known."""
    return text[: most + 1] + text[-most - 1 :] if most and len(text) > 2 * (most + 1) else text


def clip_request(request: GenerateRequest, most: int) -> GenerateRequest:
    """`request` with its texts clipped; the same object where none is."""
    if not most:
        return request
    changes: dict[str, object] = {}
    if any(_message(message, most) is not message for message in request.messages):
        changes["messages"] = [_message(message, most) for message in request.messages]
    for field, text in (("raw_prompt", request.raw_prompt), ("suffix", request.suffix)):
        if text is not None and clip(text, most) is not text:
            changes[field] = clip(text, most)
    return msgspec.structs.replace(request, **changes) if changes else request


def _message(message: Message, most: int) -> Message:
    if max(len(message.content), len(message.thinking)) <= 2 * (most + 1):
        return message
    content, thinking = clip(message.content, most), clip(message.thinking, most)
    return msgspec.structs.replace(message, content=content, thinking=thinking)
