"""*Power*: readings of this machine's power, temperature and user activity, and what follows from them for the work."""

from omlx.power.governor import PowerGovernor, PowerReport, summary
from omlx.power.policy import PowerDecision, decide
from omlx.power.readings import Readings, Sensors, sensors

__all__ = ["PowerDecision", "PowerGovernor", "PowerReport", "Readings", "Sensors", "decide", "sensors", "summary"]
