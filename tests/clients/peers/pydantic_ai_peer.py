"""pydantic-ai over OpenAI's chat completions and responses: `python pydantic_ai_peer.py URL`."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
settings = {"temperature": 0, "max_tokens": 200}


async def talk(model: object) -> None:
    agent = Agent(model, model_settings=settings)
    assert (await agent.run("Hello")).output == "Hello! How can I help you today?"
    async with agent.run_stream("Count to ten.") as reply:
        parts = [part async for part in reply.stream_text(delta=True)]
    assert "".join(parts) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.", parts
    first = await agent.run("My name is Ada.")
    second = await agent.run("What is my name?", message_history=first.all_messages())
    assert second.output == "Your name is Ada.", second.output


async def main() -> None:
    await talk(OpenAIChatModel("thinker", provider=provider))
    await talk(OpenAIResponsesModel("thinker", provider=provider))


asyncio.run(main())
print("ok")
