"""*Migration*: the settings of an Ollama on this machine as settings of oMLX, and who has the port."""

from omlx.migration.plan import MigrationPlan, plan
from omlx.migration.port import PortOwner, listener
from omlx.migration.sources import GivenVariable, find

__all__ = ["GivenVariable", "MigrationPlan", "PortOwner", "find", "listener", "plan"]
