"""Golden exchanges: text files of HTTP requests and the exact answers of a real server, with what changes masked.

A file under `tests/server/golden` is a sequence of exchanges that are played in order against one server:

    # what the exchange shows
    > POST /api/show
    > header: value
    {"model": "plain"}
    < 200
    < content-type: application/json; charset=utf-8
    {"modelfile": …}

`python -m tests.server.goldenfile NAME…` (all without a name) plays the requests and writes the answers anew; read
the diff before committing it. A mask matches only what is well-formed, so a malformed time or number shows as a
change.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
from omlx_registry import Overrides, Registry, Texts

from omlx.protocols.generation import check_template
from omlx.settings import Settings
from tests.server.local import LocalServer, ScriptedSource
from tests.support.tiny import tiny_model
from tests.support.tiny_encoder import make_encoder

FOLDER = Path(__file__).with_name("golden")
_SHOWN = re.compile(r"(content-type|transfer-encoding|allow|location|vary|retry-after|x-omlx-version|access-control-)")
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,8}[1-9])?"
_NUMBER = r"-?\d+(\.\d+)?(e-?\d+)?"
_MASKS: tuple[tuple[str, str], ...] = (
    (rf'"created_at":"{_TIME}Z"', '"created_at":"<utc>"'),
    (rf'"(modified_at|expires_at)":"{_TIME}(Z|[+-]\d\d:\d\d)"', r'"\1":"<time>"'),
    (r'("cached_tokens":\d+,)?"prompt_eval_duration"', '"cached_tokens":<n>,"prompt_eval_duration"'),
    (r'"(\w+_duration)":[1-9]\d*', r'"\1":<ns>'),
    (r'"digest":"[0-9a-f]{64}"', '"digest":"<sha256>"'),
    (r'"(size|size_vram)":[1-9]\d*', r'"\1":<bytes>'),
    (r'"id":"call_[a-z0-9]{8}"', '"id":"<call id>"'),
    (rf'"logprob":{_NUMBER}', '"logprob":<float>'),
    (r'"context":\[\d+(,\d+)*\]', '"context":[<tokens>]'),
    (rf"\[(?=[^\]]*\.)({_NUMBER},){{3,}}{_NUMBER}\]", "[<floats>]"),
    (r"(layer sha256:)[0-9a-f]{64}", r"\1<hex>"),
    (r"(omlx[_-]version\"?: ?\"?)\d+\.\d+\.\d+", r"\1<x.y.z>"),
    (r'"weights":"[^"]+"', '"weights":"<how>"'),
    (r"(for request )r\d+", r"\1<id>"),
)
_TEXT = re.compile(rb'("(?:response|content|thinking)":")((?:[^"\\]|\\.)*)"')


class Exchange(msgspec.Struct):
    """One request and the answer a server should give, as lines of the file."""

    title: str
    method: str
    path: str
    headers: dict[str, str]
    body: str
    answer: str = ""

    @property
    def text(self) -> str:
        """The exchange as the file holds it."""
        headers = "".join(f"> {name}: {value}\n" for name, value in self.headers.items())
        body = f"{self.body}\n" if self.body else ""
        return f"# {self.title}\n> {self.method} {self.path}\n{headers}{body}{self.answer}\n"


def read(path: Path) -> list[Exchange]:
    """The exchanges of a file. ValueError where it has another form."""
    found = []
    for block in re.split(r"(?m)^# ", path.read_text("utf-8"))[1:]:
        title, first, *lines = block.rstrip("\n").split("\n")
        method, _, target = first.removeprefix("> ").partition(" ")
        if not first.startswith("> ") or not target:
            raise ValueError(f"{path.name}: {title}: no request line")
        headers = {}
        while lines and lines[0].startswith("> "):
            name, _, value = lines.pop(0)[2:].partition(": ")
            headers[name] = value
        start = next((at for at, line in enumerate(lines) if line.startswith("< ")), len(lines))
        answer = "".join(f"{line}\n" for line in lines[start:])
        found.append(Exchange(title, method, target, headers, "\n".join(lines[:start]), answer))
    return found


def play(client: httpx.Client, exchange: Exchange) -> str:
    """The server's answer in the words of a golden file."""
    content = exchange.body.encode() if exchange.body else None
    response = client.request(exchange.method, exchange.path, headers=exchange.headers, content=content)
    headers = "".join(sorted(f"< {name}: {value}\n" for name, value in response.headers.items() if _SHOWN.match(name)))
    body = response.content
    streamed = response.headers.get("content-type") == "application/x-ndjson"
    if streamed:
        body = _joined(body)
    text = body.decode()
    if streamed != text.endswith("\n"):  # a stream's lines all end with a line feed, a single object has none
        text = text.rstrip("\n") + ("<no line feed>" if streamed else "<line feed>")
    text = f"< {response.status_code}\n{headers}{text}"
    for pattern, mask in _MASKS:
        text = re.sub(pattern, mask, text)
    return text.rstrip("\n") + "\n"


def _joined(body: bytes) -> bytes:
    """Consecutive chunks that differ in one text only become one: how many tokens a chunk has is a matter of speed."""
    lines: list[bytes] = []
    shape = b""
    for line in body.splitlines(keepends=True):
        texts = [found for found in _TEXT.finditer(line) if found[2]]
        now = re.sub(rb'"created_at":"[^"]*"', b"", _TEXT.sub(rb"\1", line)) + (texts[0][1] if texts else b"")
        if len(texts) == 1 and now == shape and b'"logprobs"' not in line:
            at = next(found for found in _TEXT.finditer(lines[-1]) if found[2]).end(2)
            lines[-1] = lines[-1][:at] + texts[0][2] + lines[-1][at:]
        else:
            lines.append(line)
        shape = now
    return b"".join(lines)


@contextmanager
def golden_server(root: Path) -> Iterator[httpx.Client]:
    """A client of a real server with real runners and tiny models: one that thinks and calls tools, one that does
    neither and has all a Modelfile can say, one for fill-in-the-middle, an embedder."""
    registry = Registry(root / "models", [ScriptedSource()], check_template=check_template)
    greedy = {"temperature": 0.0}
    plain = Texts(
        template="{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n{{ .Prompt }}"
        "<|im_end|>\n<|im_start|>assistant\n{{ .Response }}<|im_end|>\n",
        parameters={**greedy, "stop": ["<|im_end|>"], "num_ctx": 2048},
        messages=[{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}],
        system="Be kind.",
        licenses=["Free."],
    )
    infill = Texts(template="<PRE>{{ .Prompt }}<SUF>{{ .Suffix }}<MID>", parameters=greedy)
    qwen3, llama = tiny_model("qwen3", taught=True), tiny_model("llama", taught=True)
    for name, folder, texts in (
        ("thinker", qwen3, Texts(parameters=greedy)),
        ("plain", llama, plain),
        ("infill", llama, infill),
        ("embedder", make_encoder(root / "bert", "bert", max_seq_length=16), Texts()),
    ):
        registry.add_model_folder(name, folder, texts=texts, overrides=Overrides(), transfer="copy")
    settings = Settings(
        models=str(root / "models"),
        paged_ssd_cache_dir=str(root / "kv"),
        spare_runner=False,
        max_loaded_models=8,
        context_length=4096,
    )
    with LocalServer(registry, settings) as server, server.client() as client:
        client.timeout = httpx.Timeout(120)  # on a busy machine a load takes long
        yield client


def main(names: list[str]) -> None:
    """Write the answers of the named files anew."""
    paths = [FOLDER / f"{name}.txt" for name in names] or sorted(FOLDER.glob("*.txt"))
    with tempfile.TemporaryDirectory() as folder, golden_server(Path(folder)) as client:
        for path in paths:
            exchanges = read(path)
            for exchange in exchanges:
                exchange.answer = play(client, exchange)
            path.write_text("\n".join(exchange.text.rstrip("\n") + "\n" for exchange in exchanges), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
