"""Tests with OpenAI's client of stored completions, and of replies that a repeated Idempotency-Key brings again."""

from __future__ import annotations

import uuid

import openai as package
import pytest


def test_a_stored_completion_is_listed_read_changed_and_deleted(openai, lenient, ask):
    mark = uuid.uuid4().hex
    reply = openai.chat.completions.create(**ask, store=True, metadata={"mark": mark})
    stored = openai.chat.completions
    assert [each.id for each in stored.list(metadata={"mark": mark})] == [reply.id]
    assert stored.retrieve(reply.id).choices[0].message.content == reply.choices[0].message.content
    assert [message.content for message in lenient.chat.completions.messages.list(reply.id)] == [
        ask["messages"][0]["content"]
    ]
    assert stored.update(reply.id, metadata={"mark": mark, "seen": "yes"}).metadata["seen"] == "yes"
    assert stored.delete(reply.id).deleted
    with pytest.raises(package.NotFoundError):
        stored.retrieve(reply.id)


def test_an_idempotency_key_brings_the_same_reply_again(openai, ask):
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    sampled = ask | {"temperature": 1}
    first, second = (openai.chat.completions.create(**sampled, extra_headers=headers) for _ in range(2))
    assert first.id == second.id and first.choices == second.choices


def test_an_idempotency_key_with_another_body_is_refused(openai, ask):
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    openai.chat.completions.create(**ask, extra_headers=headers)
    with pytest.raises(package.APIStatusError) as refused:
        openai.chat.completions.create(**ask | {"seed": 5}, extra_headers=headers)
    assert 400 <= refused.value.status_code < 500
