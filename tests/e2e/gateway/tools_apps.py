# SPDX-License-Identifier: Apache-2.0
"""A loop of two tool calls with one of the packages that people use; prints the answer and the calls. Arguments: the package, the address of
OpenAI's API."""

import json
import sys

APP, URL = sys.argv[1:]
QUESTION = "How is the weather in Paris and Žilina?"
CALLS = []


def get_weather(city: str, days: int | None = None) -> str:
    """The weather in a city."""
    CALLS.append((city, days))
    return f"fair in {city}"


def langchain():
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    tools = [tool(get_weather)]
    model = ChatOpenAI(base_url=URL, api_key="key", model="m").bind_tools(tools)
    messages = [HumanMessage(QUESTION)]
    while (answer := model.invoke(messages)).tool_calls:
        messages += [answer, *(tools[0].invoke(one) for one in answer.tool_calls)]
    return answer.content


def pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=URL, api_key="key"))
    return Agent(model, tools=[get_weather]).run_sync(QUESTION).output


def litellm():
    import litellm

    litellm.suppress_debug_info = True  # it has no price for this model
    properties = {"city": {"type": "string"}, "days": {"type": "integer"}}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": properties}}}]
    messages = [{"role": "user", "content": QUESTION}]
    while True:
        chunks = list(litellm.completion("openai/m", messages, api_base=URL, api_key="key", tools=tools, stream=True))
        message = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump())
        for one in message.tool_calls:
            result = get_weather(**json.loads(one.function.arguments))
            messages.append({"role": "tool", "tool_call_id": one.id, "content": result})


print({"langchain": langchain, "pydantic-ai": pydantic_ai, "litellm": litellm}[APP](), CALLS)
