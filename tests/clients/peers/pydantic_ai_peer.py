"""pydantic-ai over OpenAI's chat completions and responses, and Anthropic: `python pydantic_ai_peer.py URL`."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ToolCallPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL = sys.argv[1]
openai = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
anthropic = AnthropicProvider(base_url=URL, api_key="none")
settings = {"temperature": 0, "max_tokens": 200}


def get_weather(city: str) -> str:
    """Current weather of a city"""
    return "18 degrees, cloudy"


async def talk(model: object) -> None:
    agent = Agent(model, model_settings=settings)
    assert (await agent.run("Hello")).output == "Hello! How can I help you today?"
    async with agent.run_stream("Count to ten.") as reply:
        parts = [part async for part in reply.stream_text(delta=True)]
    assert "".join(parts) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.", parts
    first = await agent.run("My name is Ada.")
    second = await agent.run("What is my name?", message_history=first.all_messages())
    assert second.output == "Your name is Ada.", second.output

    done = await Agent(model, tools=[get_weather], model_settings=settings).run("What is the weather in Paris?")
    parts = [part for message in done.all_messages() for part in message.parts]
    calls = [(part.tool_name, part.args_as_dict()) for part in parts if isinstance(part, ToolCallPart)]
    assert calls == [("get_weather", {"city": "Paris"})], calls
    told = [part.content for part in parts if isinstance(part, ToolReturnPart)]
    assert told == ["18 degrees, cloudy"] and isinstance(done.all_messages()[2], ModelRequest), told
    assert done.output == "It is 18 degrees and cloudy in Paris.", done.output


async def main() -> None:
    await talk(OpenAIChatModel("thinker", provider=openai))
    await talk(OpenAIResponsesModel("thinker", provider=openai))
    await talk(AnthropicModel("thinker", provider=anthropic))


asyncio.run(main())
print("ok")
