"""NVML: NVIDIA's management library, for power, energy and memory of GPUs. The driver installs it."""

from __future__ import annotations

import ctypes
from typing import Any, Final

_THROTTLED: Final = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Throttle reasons: power cap, hardware slowdown, thermal (software, hardware), power brake."""


class Nvml:
    """The C interface of the library; figures are sums over all GPUs of the machine."""

    def __init__(self, library: Any, devices: list[Any]) -> None:
        self._library, self._devices = library, devices

    @classmethod
    def open(cls) -> Nvml | None:
        """None if there is no driver."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() != 0:
                return None
            count = ctypes.c_uint()
            library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        except (OSError, AttributeError):
            return None
        devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
                devices.append(device)
        return cls(library, devices) if devices else None

    def names(self) -> str:
        names = []
        for device in self._devices:
            text = ctypes.create_string_buffer(96)
            if self._library.nvmlDeviceGetName(device, text, 96) == 0:
                names.append(text.value.decode("utf-8", "replace"))
        return " + ".join(names)

    def used_bytes(self) -> int:
        """Memory in use by all processes."""
        total = 0
        for device in self._devices:
            sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
            if self._library.nvmlDeviceGetMemoryInfo(device, sizes) == 0:
                total += sizes[2]
        return total

    def joules(self) -> float | None:
        """Energy since the driver was loaded; None if a GPU does not report it."""
        total = 0
        for device in self._devices:
            millijoules = ctypes.c_ulonglong()
            if self._library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)) != 0:
                return None
            total += millijoules.value
        return total / 1000

    def watts(self) -> float | None:
        """Present power; None if a GPU does not report it."""
        milliwatts = self._sum("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def throttled(self) -> bool | None:
        """Whether temperature or the power limit throttles a GPU now; None if no GPU reports it."""
        throttled = None
        for device in self._devices:
            reasons = ctypes.c_ulonglong()
            function = getattr(self._library, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
            if function is not None and function(device, ctypes.byref(reasons)) == 0:
                throttled = bool(throttled) or bool(reasons.value & _THROTTLED)
        return throttled

    def _sum(self, name: str) -> int | None:
        total = 0
        for device in self._devices:
            value = ctypes.c_uint()
            function = getattr(self._library, name, None)
            if function is None or function(device, ctypes.byref(value)) != 0:
                return None
            total += value.value
        return total
