"""*Power*: what this machine says about its power, its heat and its user."""

from omlx.power.readings import Readings, Sensors, sensors

__all__ = ["Readings", "Sensors", "sensors"]
