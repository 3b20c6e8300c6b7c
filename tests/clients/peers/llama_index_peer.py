"""llama-index-llms-ollama and -embeddings-ollama: `python llama_index_peer.py URL`."""

import asyncio
import sys

import ollama
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.llms.ollama import Ollama
from pydantic import BaseModel

URL = sys.argv[1]


def llm(**fields):
    return Ollama(model="thinker", base_url=URL, temperature=0, request_timeout=120, **fields)


assert llm().complete("Hello").text == "Hello! How can I help you today?"
parts = [part.delta for part in llm().stream_complete("Count to ten.")]
assert "".join(parts) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10." and len(parts) > 3, parts
chat = llm().chat([ChatMessage(role="system", content="You are a pirate."), ChatMessage(content="Hello")])
assert chat.message.content == "Ahoy there, sailor!", chat
assert chat.raw["usage"]["completion_tokens"] > 1, chat.raw
parts = list(llm().stream_chat([ChatMessage(content="What is the capital of France?")]))
assert parts[-1].message.content == "The capital of France is Paris.", parts[-1]
assert llm(thinking=True).chat([ChatMessage(content="What is 2 + 2?")]).message.content == "2 + 2 = 4"
assert asyncio.run(llm().acomplete("Hello")).text == "Hello! How can I help you today?"
assert llm(context_window=-1).metadata.context_window == 4096


def get_weather(city: str) -> str:
    """Current weather of a city"""
    return city


tool = FunctionTool.from_defaults(get_weather, description="Current weather of a city")
called = llm(thinking=False).chat_with_tools([tool], user_msg="What is the weather in Paris?")
calls = llm().get_tool_calls_from_response(called, error_on_no_tool_call=False)
assert [(call.tool_name, call.tool_kwargs) for call in calls] == [("get_weather", {"city": "Paris"})], called


class Person(BaseModel):
    name: str
    age: int


person = llm(thinking=False).as_structured_llm(Person).complete("Give me a person as JSON.").raw
assert person == Person(name="Ada", age=36), person

embedder = OllamaEmbedding(model_name="embedder", base_url=URL)
alone, together = embedder.get_text_embedding("hello"), embedder.get_text_embedding_batch(["hello", "world"])[0]
assert max(abs(a - b) for a, b in zip(alone, together, strict=True)) < 1e-4
try:
    Ollama(model="nope", base_url=URL).complete("Hello")
except ollama.ResponseError as error:
    assert error.status_code == 404, error
else:
    raise AssertionError("a model that is not there answered")
print("ok")
