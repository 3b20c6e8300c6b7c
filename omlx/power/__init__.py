"""*Power*: readings of this machine's power, temperature and user activity."""

from omlx.power.readings import Readings, Sensors, sensors

__all__ = ["Readings", "Sensors", "sensors"]
