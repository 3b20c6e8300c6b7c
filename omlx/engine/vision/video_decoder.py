"""The program that decodes a video file: the file on standard input, the frames that are wanted on standard output.

A process of its own, because FFmpeg works on what strangers send: memory and time have limits that it cannot pass,
and a crash ends nothing else. `omlx.engine.vision.video_file` starts it. The file's packets are listed first, which
is cheap and tells the time of every frame; then only the stretches between key frames that hold a wanted frame are
decoded.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import resource
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

import av
import msgspec
from av.stream import Disposition
from PIL import Image

from omlx.engine.vision.video_protocol import Order, Refused, Unreeled

MOST_SIDE_PIXELS: Final = 10_000_000
"""Of one frame as the file has it: a little more than 4K."""
MOST_LENGTH_S: Final = 2 * 3600.0
MOST_FRAME_PIXELS: Final = 1 << 20
"""Of one frame as it is handed on; larger ones are scaled down. Models look at less."""
MOST_PIXELS: Final = 50_000_000
"""Of all frames that are handed on."""
_MOST_PACKETS = 1_000_000
_MEMORY_BYTES = 4 << 30
_THREADS = 4
_TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}


class _Unusable(Exception):
    """The message stands behind "a video "."""


class Shape(NamedTuple):
    """How frames are handed on."""

    aspect: Fraction | int
    """Width of a pixel by its height."""
    most_pixels: int


class _Stretch(NamedTuple):
    """Packets from a key frame to the one before the next."""

    packets: list[Any]
    leads: bool
    """Some of its frames are shown before its key frame, and need the stretch before."""


def unreel(data: bytes, order: Order) -> Unreeled:
    """Raises _Unusable."""
    # Formats that a file may name inside are not opened, nor anything that it may refer to.
    shut = {"protocol_whitelist": "", "format_whitelist": order.kind, "max_pixels": str(MOST_SIDE_PIXELS)}
    with av.open(io.BytesIO(data), "r", format=order.kind, options=shut, metadata_errors="replace") as container:
        moving = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
        if not moving:
            raise _Unusable("has no pictures in it")
        stream = moving[0]
        codec = stream.codec_context
        if codec is None or stream.time_base is None:
            raise _Unusable("is in a form that cannot be decoded here")
        _check_size(codec.width, codec.height)
        codec.thread_type, codec.thread_count = "AUTO", min(_THREADS, os.cpu_count() or 1)
        codec.options = {"max_pixels": str(MOST_SIDE_PIXELS)}
        packets = _packets(container, stream)
        lasting = {packet.pts: packet.duration for packet in packets if not packet.is_discard}
        places, tick = sorted(lasting), stream.time_base
        usual = (places[-1] - places[0]) // max(len(places) - 1, 1)
        length_s = float((places[-1] - places[0] + (lasting[places[-1]] or usual)) * tick)
        if length_s > MOST_LENGTH_S:
            raise _Unusable(f"is {length_s:,.0f} seconds long; {MOST_LENGTH_S:,.0f} are taken")
        if length_s < (container.duration or 0) / av.time_base * 0.9 - 2:
            raise _Unusable("is cut off: its head promises more than it has")
        count = max(1, math.ceil(length_s * order.fps - 1e-3))
        kept = min(count, order.most)
        moments = (moment * count // kept / order.fps for moment in range(kept))
        # The times of frames are rounded to a tick.
        wanted = [places[bisect_right(places, places[0] + Fraction(moment) / tick + 0.5) - 1] for moment in moments]
        numbers = {place: number for number, place in enumerate(dict.fromkeys(wanted))}
        shape = Shape(stream.sample_aspect_ratio or 1, min(MOST_FRAME_PIXELS, MOST_PIXELS // len(numbers)))
        frames = list(_decoded(codec, packets, list(numbers), shape))
        return Unreeled(frames, [numbers[place] for place in wanted], order.fps * kept / count, length_s)


def _packets(container: Any, stream: Any) -> list[Any]:
    """The packets that become frames, in the order of decoding."""
    packets = [
        packet
        for packet in itertools.islice(container.demux(stream), _MOST_PACKETS + 1)
        if packet.size and packet.pts is not None and not packet.is_corrupt
    ]
    if len(packets) > _MOST_PACKETS:
        raise _Unusable(f"has more than {_MOST_PACKETS:,} frames")
    if not any(packet.is_keyframe and not packet.is_discard for packet in packets):
        raise _Unusable("is damaged or cut off: there is no whole frame in it")
    return packets


def _stretches(packets: list[Any]) -> Iterator[_Stretch]:
    starts = [index for index, packet in enumerate(packets) if packet.is_keyframe or index == 0]
    for start, end in itertools.pairwise([*starts, len(packets)]):
        part = packets[start:end]
        yield _Stretch(part, min(packet.pts for packet in part) < part[0].pts)


def _decoded(codec: Any, packets: list[Any], wanted: Sequence[int], shape: Shape) -> Iterator[bytes]:
    """The frames at the places `wanted` (ascending), each as a file."""
    waiting = list(reversed(wanted))
    stretches = list(_stretches(packets))
    places = [{packet.pts for packet in stretch.packets} for stretch in stretches]
    needed = [not own.isdisjoint(wanted) for own in places]
    for position in range(len(stretches) - 1, 0, -1):
        needed[position - 1] |= needed[position] and stretches[position].leads
    position = 0
    while position < len(stretches):
        end = position
        while end < len(stretches) and needed[end]:
            end += 1
        if end > position:
            run = [packet for stretch in stretches[position:end] for packet in stretch.packets]
            inside = set().union(*places[position:end])
            yield from _decoded_run(codec, run, waiting, inside, shape)
            codec.flush_buffers()
        position = max(end, position + 1)


def _decoded_run(codec: Any, run: list[Any], waiting: list[int], inside: set[int], shape: Shape) -> Iterator[bytes]:
    """What is wanted of packets that follow each other. A place without a frame shows the one before, as players do."""
    before = None
    ahead = set(waiting)
    last = max((number for number, packet in enumerate(run) if packet.pts in ahead), default=len(run))
    for packet in [*run[: last + 1], None]:
        frames: Sequence[Any] = ()
        with contextlib.suppress(av.error.InvalidDataError, av.error.EOFError):
            frames = codec.decode(packet)
        for frame in frames:
            while waiting and frame.pts is not None and waiting[-1] <= frame.pts:
                yield _file(frame if waiting[-1] == frame.pts or before is None else before, shape)
                waiting.pop()
            before = frame
    while waiting and waiting[-1] in inside:
        if before is None:
            raise _Unusable("is damaged: none of its frames can be decoded")
        yield _file(before, shape)
        waiting.pop()


def _file(frame: Any, shape: Shape) -> bytes:
    """Upright, of square pixels, scaled down where it is larger."""
    _check_size(frame.width, frame.height)
    wide = float(shape.aspect) if 0.2 < shape.aspect < 5 else 1.0
    width, height = frame.width * wide, float(frame.height)
    scale = min(1.0, math.sqrt(shape.most_pixels / (width * height)))
    width, height = max(2, round(width * scale)), max(2, round(height * scale))
    image = frame.to_image(width=width, height=height, interpolation="AREA")
    turn = _TURNS.get(round(frame.rotation / 90) * 90 % 360)
    buffer = io.BytesIO()
    (image.transpose(turn) if turn is not None else image).save(buffer, "BMP")
    return buffer.getvalue()


def _check_size(width: int, height: int) -> None:
    if width < 2 or height < 2:
        raise _Unusable("has no size, or its beginning is damaged")
    if width * height > MOST_SIDE_PIXELS:
        raise _Unusable(f"of {width} x {height} pixels is too large: {MOST_SIDE_PIXELS:,} pixels a frame are taken")


def _limit(seconds: int) -> None:
    """What the file makes FFmpeg do ends here: no files, no child processes, so much memory and time."""
    os.nice(10)
    for what, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit of address space
            resource.setrlimit(what, (most, most))


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    _limit(order.seconds)
    av.logging.set_level(None)
    answer: Unreeled | Refused
    try:
        answer = unreel(sys.stdin.buffer.read(), order)
    except _Unusable as error:
        answer = Refused(str(error))
    except MemoryError:
        answer = Refused("takes too much memory to decode")
    except (av.error.InvalidDataError, av.error.EOFError):
        answer = Refused("is damaged or cut off")
    except Exception as error:  # whatever else a damaged file makes FFmpeg say
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        answer = Refused(f"cannot be read: {reason}")
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
