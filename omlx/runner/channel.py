"""The runner's end of the socket: two I/O threads between the frames and the thread that owns the model.

A *channel* turns received frames into an inbox and sends what is put into its outbox, so that neither a slow server
nor a long evaluation holds up the other. Three threads meet here: the *main* thread (owns MLX; calls `send`,
`receive`, `beat`), the *reader* (fills the inbox) and the *writer* (empties the outbox, and sends a heartbeat each
second even while the main thread is inside an evaluation). They share two queues and one reference to an immutable
heartbeat.

When the socket ends, the server is gone, however it died: the reader ends the process at once, mid-evaluation
included.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time

from omlx.messages.frames import HEADER_SIZE, FromRunner, Heartbeat, ToRunner, body_length, decode_to_runner, encode

HEARTBEAT_S = 1.0
SERVER_GONE = 3
"""Exit code of a runner whose server went away."""


class Wake:
    """Put into the inbox by a helper thread of this process: "look again, I have finished something"."""


Incoming = ToRunner | Wake


class Channel:
    """Frames in, frames out; see the module text for who calls what."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._heartbeat: Heartbeat | None = None
        self._writer = threading.Thread(target=self._write, name="frames-out", daemon=True)
        self._reader = threading.Thread(target=self._read, name="frames-in", daemon=True)

    def start(self) -> None:
        self._reader.start()
        self._writer.start()

    def send(self, frame: FromRunner) -> None:
        """Queue a frame; returns at once."""
        self._outbox.put(encode(frame))

    def beat(self, heartbeat: Heartbeat) -> None:
        """What the next heartbeat says; kept until it is replaced."""
        self._heartbeat = heartbeat

    def wake(self) -> None:
        """Make a blocked `receive` return; callable from any thread."""
        self._inbox.put(Wake())

    def receive(self, *, wait: float | None) -> list[ToRunner]:
        """All frames that have arrived; waits up to `wait` seconds for the first (or a `wake`), None: for ever."""
        frames: list[ToRunner] = []
        try:
            item = self._inbox.get(timeout=wait) if wait is None or wait > 0 else self._inbox.get_nowait()
            while True:
                if not isinstance(item, Wake):
                    frames.append(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return frames

    def close(self) -> None:
        """Send what is queued, then stop writing."""
        self._outbox.put(None)
        self._writer.join(timeout=5)

    def _read(self) -> None:
        try:
            while True:
                header = receive_exactly(self._socket, HEADER_SIZE)
                self._inbox.put(decode_to_runner(receive_exactly(self._socket, body_length(header))))
        finally:
            # Server gone, or its bytes make no sense: either way nobody is left to work for.
            os._exit(SERVER_GONE)

    def _write(self) -> None:
        due = time.monotonic() + HEARTBEAT_S
        while True:
            try:
                data = self._outbox.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                data = b""
            if data is None:
                return
            if time.monotonic() >= due:
                due = time.monotonic() + HEARTBEAT_S
                if self._heartbeat is not None:
                    data += encode(self._heartbeat)
            try:
                self._socket.sendall(data)
            except OSError:
                return


def receive_exactly(connection: socket.socket, count: int) -> bytearray:
    """So many bytes. Raises EOFError where the connection ends first, OSError where it fails."""
    buffer = bytearray(count)
    view, filled = memoryview(buffer), 0
    while filled < count:
        received = connection.recv_into(view[filled:])
        if received == 0:
            raise EOFError
        filled += received
    return buffer
