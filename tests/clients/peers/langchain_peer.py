"""langchain-ollama: `python langchain_peer.py URL`; ends with 0 where everything a chain needs works."""

import asyncio
import sys

import ollama
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

URL = sys.argv[1]


@tool
def get_weather(city: str) -> str:
    """Current weather of a city"""
    return f"18 degrees, cloudy in {city}"


def chat(**fields):
    return ChatOllama(model="thinker", base_url=URL, temperature=0, **fields)


whole = chat(reasoning=True).invoke([HumanMessage("What is 2 + 2?")])
assert whole.content == "2 + 2 = 4", whole
assert whole.additional_kwargs["reasoning_content"].strip() == "Two and two make four.", whole
assert whole.response_metadata["done_reason"] == "stop" and whole.usage_metadata["output_tokens"] > 5, whole
assert chat(reasoning=False).invoke("What is 2 + 2?").content == "2 + 2 = 4"
assert chat().invoke([SystemMessage("You are a pirate."), HumanMessage("Hello")]).content == "Ahoy there, sailor!"
assert chat(num_predict=4).invoke("Count to ten.").response_metadata["done_reason"] == "length"
assert chat(stop=[", 4"]).invoke("Count to ten.").content == "1, 2, 3"

parts = list(chat().stream("Count to ten."))
assert "".join(part.content for part in parts) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10." and len(parts) > 3, parts
assert any(part.usage_metadata for part in parts)


async def streamed():
    return "".join([part.content async for part in chat().astream("Hello")])


assert asyncio.run(streamed()) == "Hello! How can I help you today?"

bound = chat(reasoning=False).bind_tools([get_weather])
asked = [HumanMessage("What is the weather in Paris?")]
called = bound.invoke(asked)
assert [(call["name"], call["args"]) for call in called.tool_calls] == [("get_weather", {"city": "Paris"})], called
streamed_call = sum(list(bound.stream(asked))[1:], next(iter(bound.stream(asked))))
assert streamed_call.tool_calls[0]["args"] == {"city": "Paris"}, streamed_call
answer = bound.invoke([*asked, called, ToolMessage("18 degrees, cloudy", tool_call_id=called.tool_calls[0]["id"])])
assert isinstance(answer, AIMessage) and answer.content, answer

schema = {
    "title": "person",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
person = chat(reasoning=False).with_structured_output(schema, method="json_schema").invoke("Give me a person as JSON.")
assert person == {"name": "Ada", "age": 36}, person
assert OllamaLLM(model="thinker", base_url=URL, temperature=0).invoke("Hello") == "Hello! How can I help you today?"

embedder = OllamaEmbeddings(model="embedder", base_url=URL)
vectors = embedder.embed_documents(["hello", "world"])
assert len(vectors) == 2 and abs(sum(value * value for value in vectors[0]) - 1) < 1e-3
assert max(abs(a - b) for a, b in zip(embedder.embed_query("hello"), vectors[0], strict=True)) < 1e-4

ChatOllama(model="thinker", base_url=URL, validate_model_on_init=True)
for model, status, text in (("nope", 404, "not found"), ("embedder", 400, "does not support chat")):
    try:
        ChatOllama(model=model, base_url=URL).invoke("Hello")
    except ollama.ResponseError as error:
        assert error.status_code == status and text in error.error, error
    else:
        raise AssertionError(f"{model} answered")
print("ok")
