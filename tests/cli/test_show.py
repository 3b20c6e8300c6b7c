"""`omlx show` of a model whose author means no good."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cli.conftest import Omlx
from tests.cli.standin import SHOWN, StandIn, answer

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31mred\rHello\u202egnp.exe\tkept\n"
SPELLED = r"\x1b]0;owned\x07\x1b[2J\x9b31mred\x0dHello\u202egnp.exe"


def test_no_byte_of_a_model_steers_the_terminal(inline: Omlx) -> None:
    shown = {**SHOWN, "system": EVIL, "license": EVIL, "model_info": {"general.architecture": EVIL}}
    with StandIn({"POST /api/show": answer(200, shown)}) as server:
        ran = inline("show", "m", "--verbose", host=server.url)
        assert ran.code == 0
        assert SPELLED[:20] in ran.out
        assert not set(ran.out) & set("\x1b\x07\x9b\r\u202e")


def test_a_part_is_spelled_out_on_a_terminal_and_whole_in_a_pipe(inline: Omlx) -> None:
    with StandIn({"POST /api/show": answer(200, {**SHOWN, "system": EVIL})}) as server:
        assert inline("show", "m", "--system", host=server.url).out == EVIL
        ours, theirs = os.openpty()
        command = [sys.executable, "-m", "omlx", "show", "m", "--system"]
        done = subprocess.run(command, env={**os.environ, "OMLX_HOST": server.url}, stdout=theirs, timeout=60)
        os.close(theirs)
        text = os.read(ours, 65536).decode()
        os.close(ours)
    assert done.returncode == 0
    assert text.rstrip("\r\n") == SPELLED + "\tkept"
