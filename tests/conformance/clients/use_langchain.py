"""Tests with LangChain's models over this API."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

QUESTION = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    capital: bool
    size: Literal["small", "large"]


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Return the weather of a city."""
    return f"clear in {city}"


def chat(place, **options) -> ChatOpenAI:
    return ChatOpenAI(model=place.model, temperature=0, max_retries=0, **{"max_tokens": 4} | options)


def test_invoke(place):
    reply = chat(place).invoke([SystemMessage("Answer in French."), HumanMessage(QUESTION)])
    assert reply.content and reply.usage_metadata["output_tokens"] == 4
    assert reply.response_metadata["finish_reason"] == "length"


def test_stream_says_what_invoke_says(place):
    model = chat(place, stream_usage=True)
    chunks = list(model.stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == model.invoke(QUESTION).content
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) == 4


def test_batch(place):
    assert all(reply.content for reply in chat(place).batch([QUESTION, "Tell me about the ocean."]))


def test_async(place):
    assert asyncio.run(chat(place).ainvoke(QUESTION)).content


def test_logprobs_and_stop(place):
    reply = chat(place, logprobs=True, top_logprobs=2, stop=["zzz"], seed=1).invoke(QUESTION)
    assert len(reply.response_metadata["logprobs"]["content"]) == 4


@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_bind_tools(place, choice):
    reply = (
        chat(place, max_tokens=64)
        .bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False)
        .invoke(QUESTION)
    )
    (call, *_) = reply.tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "Rome")
    assert not reply.invalid_tool_calls


def test_streamed_tool_calls(place):
    model = chat(place, max_tokens=64).bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    whole = None
    for chunk in model.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole.tool_calls[0]["args"]["city"] in ("Paris", "Rome")


def test_the_result_of_a_tool_goes_back(place):
    called = (
        chat(place, max_tokens=64)
        .bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
        .invoke(QUESTION)
    )
    results = [ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in called.tool_calls]
    reply = chat(place).invoke([HumanMessage(QUESTION), called, *results])
    assert isinstance(reply, AIMessage) and reply.content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(place, method):
    assert isinstance(chat(place, max_tokens=64).with_structured_output(City, method=method).invoke(QUESTION), City)


def test_structured_output_from_a_strict_tool(place):
    model = chat(place, max_tokens=64).with_structured_output(City, method="function_calling", strict=True)
    assert isinstance(model.invoke(QUESTION), City)


def test_completions(place):
    model = OpenAI(model=place.base, max_tokens=4, temperature=0, max_retries=0)
    assert model.invoke("Once upon a time") == "".join(model.stream("Once upon a time"))


def test_embeddings_of_texts(place):
    model = OpenAIEmbeddings(model=place.base, check_embedding_ctx_length=False)
    vectors = model.embed_documents(["a parrot", "a ship"])
    assert len(vectors) == 2 and len(vectors[0]) == len(model.embed_query("a parrot"))


def test_embeddings_of_a_size(place):
    size = len(OpenAIEmbeddings(model=place.base, check_embedding_ctx_length=False).embed_query("a parrot"))
    model = OpenAIEmbeddings(model=place.base, dimensions=size, check_embedding_ctx_length=False)
    assert len(model.embed_query("a parrot")) == size
