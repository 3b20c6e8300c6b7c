"""NVML: NVIDIA's management library, which tells what GPUs draw and hold; it comes with the driver."""

from __future__ import annotations

import ctypes
from typing import Any, Final

_HELD_DOWN: Final = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Reasons of a clock: power cap, hardware slowdown, heat (software, hardware), power brake."""


class Nvml:
    """NVIDIA's management library, by its C interface: all GPUs of the machine together."""

    def __init__(self, library: Any, devices: list[Any]) -> None:
        self._library, self._devices = library, devices

    @classmethod
    def open(cls) -> Nvml | None:
        """None where there is no driver."""
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
        found = []
        for device in self._devices:
            text = ctypes.create_string_buffer(96)
            if self._library.nvmlDeviceGetName(device, text, 96) == 0:
                found.append(text.value.decode("utf-8", "replace"))
        return " + ".join(found)

    def used_bytes(self) -> int:
        """Memory in use, whoever uses it."""
        total = 0
        for device in self._devices:
            sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
            if self._library.nvmlDeviceGetMemoryInfo(device, sizes) == 0:
                total += sizes[2]
        return total

    def joules(self) -> float | None:
        """Energy since the driver was loaded; None where a GPU does not count it."""
        total = 0
        for device in self._devices:
            millijoules = ctypes.c_ulonglong()
            if self._library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)) != 0:
                return None
            total += millijoules.value
        return total / 1000

    def watts(self) -> float | None:
        """What all GPUs draw now; None where one does not tell."""
        milliwatts = self._sum("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def throttled(self) -> bool | None:
        """Whether heat or the power limit holds a GPU's clock down now; None where none tells."""
        told = None
        for device in self._devices:
            reasons = ctypes.c_ulonglong()
            function = getattr(self._library, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
            if function is not None and function(device, ctypes.byref(reasons)) == 0:
                told = bool(told) or bool(reasons.value & _HELD_DOWN)
        return told

    def _sum(self, name: str) -> int | None:
        total = 0
        for device in self._devices:
            value = ctypes.c_uint()
            function = getattr(self._library, name, None)
            if function is None or function(device, ctypes.byref(value)) != 0:
                return None
            total += value.value
        return total
