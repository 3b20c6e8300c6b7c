"""The ranks of a distributed model as processes: MLX's group for the tensors, TCP to rank 0 for the decisions.

Decisions do not travel through MLX's collectives, because these queue behind the forwards that are under way and
would make every step wait for the one before. Each follower keeps one connection to the leader; a message is msgpack
behind a 4-byte big-endian length. A connection that ends means that a rank has died, and every rank then ends itself
at once, mid-forward included: a collective with a partner missing would never return.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

import mlx.core as mx
import msgspec

from omlx.messages.load_spec import Backend, Parallel
from omlx.runner.channel import receive_exactly
from omlx.runner.process import GROUP_ENDED

T = TypeVar("T")

log = logging.getLogger("omlx.runner")

_MEET_S = 120.0
"""How long ranks wait for one another at the start: each imports MLX first, on machines of unequal speed."""
_HEADER = struct.Struct(">I")
_MAX_MESSAGE = 64 << 20
_MAX_GREETING = 4096


class Greeting(msgspec.Struct):
    """A follower's first message."""

    secret: str
    rank: int


class Link:
    """A connection to one other rank. Its reader thread ends the process when the connection does."""

    def __init__(self, connection: socket.socket, peer: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self._socket = connection
        self._peer = peer
        self._inbox: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._expected = False
        threading.Thread(target=self._read, name=f"rank {peer}", daemon=True).start()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(_HEADER.pack(len(data)) + data)
        except OSError:
            self._end()

    def receive(self) -> bytearray:
        return self._inbox.get()

    def expect_end(self) -> None:
        """The group is being taken down in order: a connection that ends is no fault any more."""
        self._expected = True

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                self._inbox.put(_receive(self._socket, _MAX_MESSAGE))
        if not self._expected:
            self._end()

    def _end(self) -> NoReturn:
        log.error("rank %d is gone: the model's group of processes ends", self._peer)
        os._exit(GROUP_ENDED)


class Group:
    """This process as one of the ranks (`omlx.engine.ranks.Ranks`)."""

    def __init__(self, group: Any, links: list[Link], parallel: Parallel) -> None:
        self.rank = int(group.rank())
        self.size = int(group.size())
        self._group = group
        self._links = links
        """At the leader one per follower, by rank; at a follower the one to the leader."""
        self._parallel = parallel
        self.description = f", {self.size} ranks"

    def decide(self, make: Callable[[], T], kind: type[T]) -> T:
        if self.rank:
            return msgspec.msgpack.decode(self._links[0].receive(), type=kind)
        decision = make()
        data = msgspec.msgpack.encode(decision)
        for link in self._links:
            link.send(data)
        return decision

    def gather(self, value: T, kind: type[T]) -> list[T]:
        if self.rank:
            self._links[0].send(msgspec.msgpack.encode(value))
            return self.decide(list, cast(type[list[T]], list[kind]))  # type: ignore[valid-type]
        others = [msgspec.msgpack.decode(link.receive(), type=kind) for link in self._links]
        return self.decide(lambda: [value, *others], cast(type[list[T]], list[kind]))  # type: ignore[valid-type]

    def share(self, tokens: mx.array) -> mx.array:
        # A product and not plain zeros: a follower must compute what its tokens depend on, collectives included.
        return mx.distributed.all_sum(tokens * int(self.rank == 0), group=self._group)

    def split(self, model: Any) -> None:
        """Tensor parallel where the model can (every layer on every rank), else pipeline (whole layers by rank)."""
        inner = getattr(model, "model", None)
        uneven = self._uneven(getattr(model, "args", None))
        if self._parallel != "pipeline" and hasattr(model, "shard") and not uneven:
            model.shard(self._group)
            self.description = f", tensor parallel over {self.size} ranks"
        elif self._parallel != "tensor" and inner is not None and hasattr(inner, "pipeline"):
            inner.pipeline(self._group)
            self.description = f", pipeline parallel over {self.size} ranks"
        elif self._parallel != "pipeline" and hasattr(model, "shard"):
            raise ValueError(f"{uneven}; choose another number of processes")
        else:
            kind = type(model).__module__.rsplit(".", 1)[-1]
            how = "" if self._parallel == "auto" else f" by {self._parallel} parallelism"
            raise ValueError(f"{kind} models cannot be divided over several processes{how}")

    def _uneven(self, config: Any) -> str:
        """What of the model does not divide by the number of ranks, as a sentence; "" where all does."""
        for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
            count = getattr(config, name, None)
            if isinstance(count, int) and count % self.size:
                return f"its {name} of {count} cannot be shared evenly by {self.size} processes"
        return ""

    def expect_end(self) -> None:
        for link in self._links:
            link.expect_end()

    def abort(self, error: Exception) -> NoReturn:
        log.error("rank %d failed and ends its group: %s", self.rank, error, exc_info=error)
        os._exit(GROUP_ENDED)


def join_group(backend: Backend, control: str, secret: str, parallel: Parallel) -> Group:
    """Take this process's place in its group; the launcher's environment says which. `control`: the leader's HOST:PORT.

    Raises RuntimeError where MLX has no such backend here, or the ranks do not come together.
    """
    # `strict`: MLX would otherwise go on with groups of one, each believing it was alone.
    group = mx.distributed.init(strict=True, backend=backend)
    host, _, port = control.rpartition(":")
    address = (host, int(port))
    rank, size = int(group.rank()), int(group.size())
    links = _meet(address, secret, size - 1) if rank == 0 else [_report(address, secret, rank)]
    return Group(group, links, parallel)


def _meet(address: tuple[str, int], secret: str, followers: int) -> list[Link]:
    """The leader's side: wait for every follower. Whoever does not know the secret is sent away."""
    deadline = time.monotonic() + _MEET_S
    links: dict[int, Link] = {}
    with socket.create_server(address) as server:
        while len(links) < followers:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                raise RuntimeError(
                    f"only {len(links) + 1} of {followers + 1} ranks came within {_MEET_S:.0f} s"
                ) from None
            connection.settimeout(10.0)
            try:
                greeting = msgspec.msgpack.decode(_receive(connection, _MAX_GREETING), type=Greeting)
            except (OSError, EOFError, ValueError):
                connection.close()
                continue
            known = hmac.compare_digest(greeting.secret.encode(), secret.encode())
            if known and 0 < greeting.rank <= followers and greeting.rank not in links:
                links[greeting.rank] = Link(connection, greeting.rank)
            else:
                log.warning("a connection to the group's port was refused")
                connection.close()
    return [links[rank] for rank in sorted(links)]


def _report(address: tuple[str, int], secret: str, rank: int) -> Link:
    """A follower's side: find the leader, which may not listen yet."""
    deadline = time.monotonic() + _MEET_S
    while True:
        try:
            connection = socket.create_connection(address, timeout=10.0)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"rank 0 cannot be reached at {address[0]}:{address[1]}: {error}") from error
            time.sleep(0.1)
    link = Link(connection, 0)
    link.send(msgspec.msgpack.encode(Greeting(secret, rank)))
    return link


def _receive(connection: socket.socket, most: int) -> bytearray:
    """One message. Raises EOFError, OSError, or ValueError where it is longer than `most` bytes."""
    (length,) = _HEADER.unpack(receive_exactly(connection, _HEADER.size))
    if length > most:
        raise ValueError(f"a message of {length} bytes")
    return receive_exactly(connection, length)
