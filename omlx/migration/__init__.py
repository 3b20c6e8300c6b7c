"""*Migration*: the settings of an Ollama on this machine as settings of oMLX, and who has the port."""

from omlx.migration.plan import Plan, plan
from omlx.migration.port import Listener, listener
from omlx.migration.sources import Given, find

__all__ = ["Given", "Listener", "Plan", "find", "listener", "plan"]
