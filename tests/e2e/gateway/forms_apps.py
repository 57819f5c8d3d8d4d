# SPDX-License-Identifier: Apache-2.0
"""Asks for a class of pydantic with LangChain, instructor and pydantic-ai; prints the name of each that got one. Arguments: the address
of OpenAI's API, the model."""

import sys
from typing import Literal

import instructor
import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, MODEL = sys.argv[1:]
QUESTION = "What news?"


class Person(BaseModel):
    name: str = Field(max_length=12)  # so that the small model comes to an end
    kind: Literal["lord", "lady"]
    tags: list[Literal["old", "young"]] = Field(max_length=3)


langchain = ChatOpenAI(base_url=URL, api_key="key", model=MODEL, max_tokens=600, seed=3).with_structured_output(Person)
assert isinstance(langchain.invoke(QUESTION), Person)
print("langchain")
client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key="key"), mode=instructor.Mode.JSON_SCHEMA)
asked = [{"role": "user", "content": QUESTION}]
assert isinstance(client.chat.completions.create(model=MODEL, messages=asked, response_model=Person, max_tokens=600, seed=3), Person)
print("instructor")
agent = Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="key")), output_type=NativeOutput(Person))
assert isinstance(agent.run_sync(QUESTION, model_settings={"max_tokens": 600, "seed": 3}).output, Person)
print("pydantic-ai")
