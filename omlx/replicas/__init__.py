"""Several servers behind one address: requests go to the one that knows their beginning, or has the least to do."""

from omlx.replicas.fleet import Fleet
from omlx.replicas.front import Front

__all__ = ["Fleet", "Front"]
