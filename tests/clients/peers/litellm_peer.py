"""litellm with its providers `ollama` (generate) and `ollama_chat`: `python litellm_peer.py URL`."""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

URL = sys.argv[1]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(text, model="ollama_chat/thinker", **fields):
    messages = [{"role": "user", "content": text}]
    return litellm.completion(model=model, messages=messages, api_base=URL, temperature=0, **fields)


for provider in ("ollama", "ollama_chat"):
    whole = ask("Count to ten.", f"{provider}/thinker")
    # The provider `ollama` writes the conversation into the prompt in a form of its own: the model counts otherwise.
    if provider == "ollama_chat":
        assert whole.choices[0].message.content == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.", whole
    assert whole.choices[0].finish_reason == "stop" and whole.usage.completion_tokens > 5, whole
    parts = list(ask("Count to ten.", f"{provider}/thinker", stream=True))
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content and len(parts) > 3, text
    assert parts[-1].choices[0].finish_reason == "stop", parts[-1]
thought = ask("What is 2 + 2?").choices[0].message
assert thought.content == "2 + 2 = 4" and thought.reasoning_content.strip() == "Two and two make four.", thought
assert ask("Count to ten.", max_tokens=4).choices[0].finish_reason == "length"

called = ask("What is the weather in Paris?", tools=[TOOL], reasoning_effort="none")
call = called.choices[0].message.tool_calls[0].function
assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"}), called
assert called.choices[0].finish_reason == "tool_calls", called
schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
          "required": ["name", "age"]}  # fmt: skip
form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
person = ask("Give me a person as JSON.", response_format=form)
assert json.loads(person.choices[0].message.content) == {"name": "Ada", "age": 36}, person

vectors = litellm.embedding(model="ollama/embedder", input=["hello", "world"], api_base=URL).data
assert len(vectors) == 2 and len(vectors[0]["embedding"]) == 32, vectors


async def streamed():
    answer = await litellm.acompletion(
        model="ollama_chat/thinker", messages=[{"role": "user", "content": "Hello"}], api_base=URL, stream=True
    )
    return "".join([part.choices[0].delta.content or "" async for part in answer])


assert asyncio.run(streamed()) == "Hello! How can I help you today?"
try:
    ask("Hello", "ollama_chat/nope")
except (litellm.NotFoundError, litellm.APIConnectionError) as error:
    assert "not found" in str(error), error
else:
    raise AssertionError("a model that is not there answered")
print("ok")
