"""What ranks other than 0 do: load their share of the model, then step as the leader's engine does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from omlx.messages.failures import LoadError
from omlx.messages.load_spec import LoadSpec
from omlx.runner.build import open_engine
from omlx.runner.serve import CLOSE_BUDGET_S

if TYPE_CHECKING:
    from omlx.runner.group import Group

log = logging.getLogger("omlx.runner")


def follow(group: Group) -> int:
    """Returns the exit code. A leader that goes away ends this process, wherever it is."""
    while True:
        spec = group.decide(_nothing, LoadSpec)
        try:
            opened = open_engine(spec, group)
        except LoadError:
            continue  # The leader tells the server; what comes next is another model or the end.
        opened.engine.follow()
        group.expect_end()
        if opened.store is not None:
            opened.store.checkpoint(CLOSE_BUDGET_S)
        opened.engine.close()
        group.gather(True, bool)
        return 0


def _nothing() -> LoadSpec:
    raise AssertionError("a follower decides nothing")
