"""What a route can ask the application for, by parameter name: `registry`, `pool`, `settings`; and its request."""

from __future__ import annotations

from typing import Any, TypeAlias

from litestar import Request
from litestar.di import NamedDependency
from omlx_registry import Registry

from omlx.pool import Pool
from omlx.server.telemetry import Telemetry
from omlx.settings import Settings

HttpRequest: TypeAlias = Request[Any, Any, Any]
GivenRegistry: TypeAlias = NamedDependency[Registry]
GivenPool: TypeAlias = NamedDependency[Pool]
GivenTelemetry: TypeAlias = NamedDependency[Telemetry]
GivenSettings: TypeAlias = NamedDependency[Settings]
