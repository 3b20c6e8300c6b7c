"""llm with the plugin llm-ollama: `python llm_peer.py URL`."""

import os
import sys
import tempfile

os.environ |= {"OLLAMA_HOST": sys.argv[1], "LLM_USER_PATH": tempfile.mkdtemp()}
import llm
from pydantic import BaseModel

names = [model.model_id for model in llm.get_models()]
assert {"ollama/thinker:latest", "ollama/plain:latest"} <= set(names), names
assert not any("embedder" in name for name in names), names
model = llm.get_model("ollama/thinker:latest")
assert model.prompt("Hello", temperature=0).text() == "Hello! How can I help you today?"
assert model.prompt("Hello", system="You are a pirate.", temperature=0, stream=False).text() == "Ahoy there, sailor!"
parts = list(model.prompt("Count to ten.", temperature=0, stream=True))
assert "".join(parts) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10." and len(parts) > 3, parts
talk = model.conversation()
talk.prompt("My name is Ada.", temperature=0).text()
assert talk.prompt("What is my name?", temperature=0).text() == "Your name is Ada."


class Person(BaseModel):
    name: str
    age: int


person = model.prompt("Give me a person as JSON.", schema=Person, temperature=0, think=False, stream=False).text()
assert Person.model_validate_json(person) == Person(name="Ada", age=36), person


def get_weather(city: str) -> str:
    """Current weather of a city"""
    return "18 degrees, cloudy"


asked = model.prompt("What is the weather in Paris?", tools=[get_weather], temperature=0, think=False, stream=False)
assert [(call.name, call.arguments) for call in asked.tool_calls()] == [("get_weather", {"city": "Paris"})]

vector = llm.get_embedding_model("ollama/embedder:latest").embed("hello")
assert len(vector) == 32
print("ok")
