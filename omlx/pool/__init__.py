"""Which models are loaded: the pool, its leases and its errors."""

from omlx.pool.errors import PoolError
from omlx.pool.lease import Lease
from omlx.pool.pool import Pool
from omlx.pool.slot import SlotSnapshot
from omlx.runner.connection import RequestFailed

__all__ = ["Lease", "Pool", "PoolError", "RequestFailed", "SlotSnapshot"]
