"""*Telemetry*: what the server tells about itself. One collector hears of requests and models, all else reads it.

`metrics` counts; `reading` is one look at the counts; `samples` keeps looks of the last hour; `journal` keeps the last
requests; `overview` makes the dashboard's numbers of them; `traces` sends spans where that is wanted.
"""

from omlx.server.telemetry.telemetry import Telemetry

__all__ = ["Telemetry"]
