"""*Doctor*: what `omlx doctor` looks at: checks of the machine, and advice from a server that runs."""

from omlx.doctor.advice import advise
from omlx.doctor.finding import Finding
from omlx.doctor.machine import examine

__all__ = ["Finding", "advise", "examine"]
