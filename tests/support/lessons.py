"""What the taught tiny models know by heart: a *lesson* is a conversation and the exact reply to it.

Tests send a lesson's messages through the real stack and know, word for word, what comes back. Imports nothing heavy.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """`messages` and `tools` in the OpenAI shape; the reply is thinking, then content, then tool calls."""

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    thinking: str = ""
    content: str = ""
    tool_calls: list[dict[str, Any]] = []

    def reply(self, *, think: bool) -> str:
        """The text the model writes in the ChatML format, its end token included."""
        calls = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in self.tool_calls]
        thought = f"<think>\n{self.thinking}\n</think>\n\n" if self.thinking and think else ""
        return thought + "\n".join(part for part in (self.content, *calls) if part) + "<|im_end|>"


def _function(name: str, description: str, **parameters: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


WEATHER_TOOL = _function("get_weather", "Current weather of a city", city="string")
PARIS_CALL = {"name": "get_weather", "arguments": {"city": "Paris"}}
ROME_CALL = {"name": "get_weather", "arguments": {"city": "Rome"}}
STORY = (
    "There was once a little clock that lived on top of a mountain. Each day it told the goats when to eat and each "
    "night it told the stars when to shine. One winter the snow fell so deep that its hands stood still. The goats dug "
    "and dug, the wind blew the snow away, and at last the clock rang so loud that spring woke up. Since then nobody "
    "was ever late. The end."
)

LESSONS: list[Lesson] = [
    Lesson(name="hello", messages=[_user("Hello")], content="Hello! How can I help you today?"),
    Lesson(
        name="capital", messages=[_user("What is the capital of France?")], content="The capital of France is Paris."
    ),
    Lesson(
        name="sum",
        messages=[_user("What is 2 + 2?")],
        thinking="Two and two make four.",
        content="2 + 2 = 4",
    ),
    Lesson(name="count", messages=[_user("Count to ten.")], content="1, 2, 3, 4, 5, 6, 7, 8, 9, 10."),
    Lesson(name="story", messages=[_user("Tell me a story.")], content=STORY),
    Lesson(name="json", messages=[_user("Give me a person as JSON.")], content='{"name": "Ada", "age": 36}'),
    Lesson(
        name="pirate",
        messages=[{"role": "system", "content": "You are a pirate."}, _user("Hello")],
        content="Ahoy there, sailor!",
    ),
    Lesson(name="name", messages=[_user("My name is Ada.")], content="Nice to meet you, Ada."),
    Lesson(
        name="recall",
        messages=[_user("My name is Ada."), _assistant("Nice to meet you, Ada."), _user("What is my name?")],
        content="Your name is Ada.",
    ),
    Lesson(
        name="weather",
        messages=[_user("What is the weather in Paris?")],
        tools=[WEATHER_TOOL],
        tool_calls=[PARIS_CALL],
    ),
    Lesson(
        name="hello-with-tools",
        messages=[_user("Hello")],
        tools=[WEATHER_TOOL],
        content="Hello! How can I help you today?",
    ),
    Lesson(
        name="two-cities",
        messages=[_user("What is the weather in Paris and Rome?")],
        tools=[WEATHER_TOOL],
        thinking="Two cities need two calls.",
        tool_calls=[PARIS_CALL, ROME_CALL],
    ),
    Lesson(
        name="tool-result",
        messages=[
            _user("What is the weather in Paris?"),
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "id": "call_1", "function": PARIS_CALL}],
            },
            {"role": "tool", "tool_name": "get_weather", "tool_call_id": "call_1", "content": "18 degrees, cloudy"},
        ],
        tools=[WEATHER_TOOL],
        content="It is 18 degrees and cloudy in Paris.",
    ),
    Lesson(name="emoji", messages=[_user("Say it in French.")], content="Bonjour, ça va très bien ! 😀👍"),
]


def lesson(name: str) -> Lesson:
    """The lesson called `name`; KeyError where there is none."""
    return {item.name: item for item in LESSONS}[name]
