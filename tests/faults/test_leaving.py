"""Clients that leave, at any moment of any kind of request, while others are served.

Each *leaver* sends one request and closes or resets its connection some milliseconds later. *Bystanders* ask the same
model and another one all the time, and know word for word what they have to hear. A descriptor that two owners close
shows here: as a server that aborts or hangs, or as bytes of one client in the log or in another's answer.

Some bystanders are never without a stream: leavers may not delay its pieces by more than 2 s, on the model that they
leave nor on another (`tests/support/bystanders.py` says how that is judged on a machine that is busy). The wait for a
*place* on a model that takes three requests at a time is no delay of the server's, so it does not count.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from omlx_registry import Registry

from tests.faults.house import HELLO, MODEL, House, ask
from tests.support.bystanders import Streams
from tests.support.hub import FakeHub
from tests.support.routes import BOUNDARY, form
from tests.support.tiny import tiny_model
from tests.support.tiny_whisper import as_wav, make_whisper, sound

pytestmark = pytest.mark.timeout(3600)
SECOND = "second"
THIRD = "third"
SPEECH = "speech"
DELAY_S = {MODEL: 2.0, THIRD: 2.0}
SECRET = "Only-for-the-model"
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (\[[\w.-]+\] )?(WARNING: |ERROR: )?\S.*")


def chat(model: str, text: str, **more: object) -> tuple[str, bytes]:
    body = {"model": model, "messages": [{"role": "user", "content": f"{SECRET} {text}"}], **more}
    return "/api/chat", json.dumps(body).encode()


ENDLESS = {"type": "string", "allOf": [{"pattern": f"^(a|b)*a(a|b){{{at}}}"} for at in range(5, 100, 3)]}
"""A schema that takes its compiler minutes."""


def recording(dice: random.Random) -> tuple[str, bytes]:
    """Speech that takes from less than a second to a minute to write down."""
    fields = [("model", "", SPEECH.encode()), ("prompt", "", SECRET.encode()), ("stream", "", b"true")]
    body, _ = form([*fields, ("file", SECRET, as_wav(sound(dice.choice((1, 20, 200)))))])
    return f"/v1/audio/{dice.choice(('transcriptions', 'translations'))}", body


def response(dice: random.Random) -> tuple[str, bytes]:
    body = {"model": MODEL, "input": SECRET, "stream": dice.random() < 0.5, "max_output_tokens": 200}
    return "/v1/responses", json.dumps(body).encode()


LONELY = [f"lonely-{number}" for number in range(6)]
"""Models that nobody but leavers asks for: their loads are given up."""
PHASES: dict[str, tuple[Callable[[random.Random], tuple[str, bytes]], float]] = {
    "connect": (lambda dice: ("", b""), 0.005),
    "queue": (lambda dice: chat(MODEL, "hello", options={"num_predict": 200, "temperature": 1}), 0.05),
    "load": (lambda dice: chat(dice.choice(LONELY), "hello", keep_alive=0), 0.02),
    "load with others": (lambda dice: chat(SECOND, "hello", keep_alive=0), 0.02),
    "prefill": (lambda dice: chat(MODEL, "word " * dice.randint(500, 3000), options={"num_predict": 1}), 0.1),
    "decode": (lambda dice: chat(MODEL, "hello", options={"num_predict": 400, "temperature": 1}), 0.3),
    "pull": (lambda dice: ("/api/pull", b'{"model":"hf.co/org/tiny"}'), 0.5),
    "create": (
        lambda dice: ("/api/create", json.dumps({"model": "made", "from": MODEL, "quantize": "q4_K_M"}).encode()),
        0.5,
    ),
    "recording": (recording, 0.5),
    "response": (response, 0.1),
    "grammar": (lambda dice: chat(MODEL, "hello", format=ENDLESS | {"title": str(dice.random())}), 0.5),
    "upload": (lambda dice: (f"/api/blobs/sha256:{dice.randbytes(32).hex()}", SECRET.encode() * 20_000), 0.02),
}
"""What a leaver sends, and the longest time in s after which it leaves."""
_WEIGHTS = {"load": 12, "pull": 1, "create": 1, "grammar": 1}


def leave(house: House, phase: str, dice: random.Random) -> None:
    request, longest = PHASES[phase]
    path, body = request(dice)
    with socket.create_connection(("127.0.0.1", house.port), timeout=60) as connection:
        if path:
            kind = f"multipart/form-data; boundary={BOUNDARY}" if path.startswith("/v1/audio/") else "application/json"
            lines = [
                f"POST {path} HTTP/1.1",
                "Host: localhost",
                f"Content-Type: {kind}",
                f"Content-Length: {len(body)}",
            ]
            message = "\r\n".join([*lines, "", ""]).encode() + body
            if phase == "upload" or dice.random() < 0.1:
                message = message[: dice.randint(1, len(message) - 1)]
            with contextlib.suppress(ConnectionError):  # a refusal may come before all is sent
                connection.sendall(message)
        time.sleep(dice.random() * longest)
        if dice.random() < 0.7:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def campaign(house: House, leavers: int) -> Counter[str]:
    """Send so many leavers, eight at a time, with two bystanders beside them; returns how many of each phase came."""
    phases = Counter[str]()
    wrong: list[str] = []
    done = threading.Event()
    dice = random.Random(20_27)
    order = iter(dice.choices(list(PHASES), [_WEIGHTS.get(phase, 3) for phase in PHASES], k=leavers))
    turn = threading.Lock()

    def run_leavers(seed: int) -> None:
        own = random.Random(seed)
        while not wrong:
            with turn:
                phase = next(order, "")
                phases[phase] += bool(phase)
            if not phase:
                return
            try:
                leave(house, phase, own)
            except OSError as error:
                wrong.append(f"{phase}: {error!r}")

    def stand_by(model: str, **fields: object) -> None:
        while not done.is_set():
            try:
                answer = ask(house.url, model=model, **fields)
            except httpx.HTTPError as error:
                wrong.append(f"{model}: {error!r}")
                return
            if answer.status_code != 200 or answer.json()["message"]["content"] != HELLO.content:
                wrong.append(f"{model}: {answer.status_code} {answer.text}")
                return
            phases[f"answers of {model}"] += 1

    groups = [threading.Thread(target=run_leavers, args=(seed,)) for seed in range(8)]
    bystanders = [
        threading.Thread(target=stand_by, args=(MODEL,)),
        threading.Thread(target=stand_by, args=(SECOND,), kwargs={"keep_alive": 0}),
    ]
    steady = Streams(house.port, DELAY_S, first_piece=False)
    steady.settle()
    for thread in (*bystanders, *groups):
        thread.start()
    for thread in groups:
        thread.join()
    done.set()
    for thread in bystanders:
        thread.join()
    steady.end()
    print(f"{leavers} leavers, the longest waits: {steady.longest}, usual: {steady.usual}")
    assert not steady.late, steady.late
    assert not wrong, f"{wrong}\n{house.log_text()[-4000:]}"
    return phases


@pytest.fixture
def busy_house(tmp_path: Path) -> Iterator[House]:
    """A house with two models and a slow hub, whose models take three requests at a time."""
    folder = tmp_path / "hub" / "org" / "tiny"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(tiny_model("llama"))
    with FakeHub(tmp_path / "hub") as hub:
        hub.faults.bytes_per_s = 100_000
        env = {
            **hub.env,
            "HF_HOME": str(tmp_path / "hf"),
            "OMLX_SPARE_RUNNER": "true",
            "OMLX_MAX_CONCURRENT_REQUESTS": "3",
            "OMLX_MAX_QUEUE": "100000",
        }
        with House(tmp_path / "house", env=env) as house:
            house.register(SECOND, "taught-llama")
            speech = make_whisper(tmp_path / "speech")
            Registry(house.models).add_model_folder(SPEECH, speech, transfer="copy")
            created = {"model": THIRD, "from": SECOND, "system": "Be steady.", "stream": False}
            assert house.post("/api/create", created).json() == {"status": "success"}
            for name in LONELY:
                made = {"model": name, "from": SECOND, "system": name, "stream": False}
                assert house.post("/api/create", made).json() == {"status": "success"}
            yield house.furnish()


@pytest.mark.parametrize("leavers", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_clients_that_leave_harm_nobody(busy_house: House, leavers: int) -> None:
    """The server stands, each bystander is answered rightly, and no byte of any client is in the log."""
    seen = campaign(busy_house, leavers)
    assert set(PHASES) <= set(seen)
    assert min(seen[f"answers of {name}"] for name in (MODEL, SECOND)) > 0
    busy_house.examine()
    log = busy_house.log_text()
    assert SECRET not in log
    strange = [line for line in log.splitlines() if not _LINE.fullmatch(line)]
    assert not strange, "\n".join(strange[:60])
    assert "Bad file descriptor" not in log and "File exists" not in log
