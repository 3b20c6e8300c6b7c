"""The client of our own HTTP API: its calls, its errors and its transport."""

from omlx.client.client import VERSION_HEADER, Client, ImportLine
from omlx.client.errors import ClientError, Unreachable
from omlx.client.transport import is_loopback

__all__ = ["VERSION_HEADER", "Client", "ClientError", "ImportLine", "Unreachable", "is_loopback"]
