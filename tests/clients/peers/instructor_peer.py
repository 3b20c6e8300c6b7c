"""instructor over the openai package: `python instructor_peer.py URL`."""

import sys

import instructor
import openai
from pydantic import BaseModel

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")


class Person(BaseModel):
    name: str
    age: int


question = [{"role": "user", "content": "Give me a person as JSON."}]
asked = {"model": "thinker", "temperature": 0, "max_retries": 1, "reasoning_effort": "none"}
schema = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
person = schema.chat.completions.create(response_model=Person, messages=question, **asked)
assert isinstance(person.name, str) and isinstance(person.age, int), person

# As a tool that has to be called: the grammar makes any model keep to the schema.
tools = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
person = tools.chat.completions.create(response_model=Person, messages=question, max_tokens=200, **asked)
assert isinstance(person.name, str) and isinstance(person.age, int), person
print("ok")
