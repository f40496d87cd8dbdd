// The official client for Node: chat, tools, structured output, completions, embeddings, models, errors.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const { CONFORMANCE_BASE: base, CONFORMANCE_MODEL: model, CONFORMANCE_BROKE_KEY: brokeKey } = process.env;
const openai = new OpenAI({ maxRetries: 0 });
const chat = openai.chat.completions;
const ask = { model, max_tokens: 4, temperature: 0, messages: [{ role: "user", content: "What is the capital of France?" }] };
const City = z.object({ capital: z.boolean(), size: z.enum(["small", "large"]) });
const Weather = z.object({ city: z.enum(["Paris", "Rome"]), days: z.union([z.literal(1), z.literal(2)]) });
const withTool = { ...ask, max_tokens: 64, tools: [zodFunction({ name: "get_weather", parameters: Weather })] };
const named = { type: "function", function: { name: "get_weather" } };

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test("a reply has text, usage and a finish reason", async () => {
  const reply = await chat.create(ask);
  assert.equal(reply.choices[0].finish_reason, "length");
  assert.equal(reply.choices[0].message.refusal, null);
  assert.equal(reply.usage.completion_tokens, 4);
  assert.match(reply._request_id, /^req_/);
});

test("a stream says what a whole reply says", async () => {
  const whole = await chat.create(ask);
  const chunks = await all(await chat.create({ ...ask, stream: true, stream_options: { include_usage: true } }));
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(chunks.at(-1).usage.completion_tokens, 4);
});

test("the stream helper ends with the whole completion", async () => {
  const stream = chat.stream(ask);
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
});

test("a stream can be left", async () => {
  const stream = await chat.create({ ...ask, max_tokens: 64, stream: true });
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
  assert.ok(stream.controller.signal.aborted);
});

test("n, stop, seed and logprobs", async () => {
  const reply = await chat.create({ ...ask, temperature: 1, seed: 3, n: 2, stop: ["zzz"], logprobs: true, top_logprobs: 2 });
  assert.deepEqual(reply.choices.map((choice) => choice.index), [0, 1]);
  assert.ok(reply.choices[0].logprobs.content.every((token) => token.top_logprobs.length >= 2));
});

test("parse returns structured output", async () => {
  const reply = await chat.parse({ ...ask, max_tokens: 48, response_format: zodResponseFormat(City, "city") });
  City.parse(reply.choices[0].message.parsed);
});

test("a stream parses structured output", async () => {
  const stream = chat.stream({ ...ask, max_tokens: 48, response_format: zodResponseFormat(City, "city") });
  City.parse((await stream.finalChatCompletion()).choices[0].message.parsed);
});

test("a named tool is called with arguments that parse", async () => {
  const reply = await chat.parse({ ...withTool, tool_choice: named });
  const [call] = reply.choices[0].message.tool_calls;
  Weather.parse(call.function.parsed_arguments);
});

test("streamed tool calls equal whole ones", async () => {
  const whole = await chat.create({ ...withTool, tool_choice: named });
  const final = await chat.stream({ ...withTool, tool_choice: named }).finalChatCompletion();
  const argumentsOf = (reply) => reply.choices[0].message.tool_calls.map((call) => call.function.arguments);
  assert.deepEqual(argumentsOf(final), argumentsOf(whole));
});

test("runTools calls the function and answers with its result", async () => {
  let asked = null;
  const tool = {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a city.",
      parameters: z.toJSONSchema(Weather),
      parse: JSON.parse,
      function: (given) => ((asked = given), "sunny"),
    },
  };
  const runner = chat.runTools({ ...ask, max_tokens: 48, tools: [tool], tool_choice: named }, { maxChatCompletions: 2 });
  const messages = (await runner.done(), runner.messages);
  Weather.parse(asked);
  assert.equal(messages.find((message) => message.role === "tool").content, "sunny");
});

test("completions take text and token ids", async () => {
  for (const [prompt, count] of [["Once upon a time", 1], [["One", "Two"], 2], [[504, 3280], 1]]) {
    const reply = await openai.completions.create({ model: base, prompt, max_tokens: 4, temperature: 0 });
    assert.equal(reply.choices.length, count);
  }
});

test("completions stream, echo and have logprobs", async () => {
  const wanted = { model: base, prompt: "Once upon a time", max_tokens: 4, temperature: 0, echo: true, logprobs: 1 };
  const whole = await openai.completions.create(wanted);
  const chunks = await all(await openai.completions.create({ ...wanted, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole.choices[0].text);
  assert.equal(whole.choices[0].logprobs.tokens.join(""), whole.choices[0].text);
});

test("embeddings as floats, as the client's base64, of the model's own size alone", async () => {
  const wanted = { model: base, input: ["a parrot", "a ship"] };
  const packed = await openai.embeddings.create(wanted);
  const floats = await openai.embeddings.create({ ...wanted, encoding_format: "float" });
  packed.data[0].embedding.forEach((value, i) => assert.ok(Math.abs(value - floats.data[0].embedding[i]) < 1e-6));
  const size = floats.data[0].embedding.length;
  assert.equal((await openai.embeddings.create({ ...wanted, dimensions: size })).data[1].embedding.length, size);
  await assert.rejects(openai.embeddings.create({ ...wanted, dimensions: 8 }), { status: 400, param: "dimensions" });
});

test("models are listed and retrieved", async () => {
  const ids = (await all(openai.models.list())).map((each) => each.id);
  assert.ok(ids.includes(base) && ids.includes(`${base}:pirate`));
  assert.equal((await openai.models.retrieve(`${base}:pirate`)).id, `${base}:pirate`);
});

test("a stored completion is listed, read, changed and deleted", async () => {
  const mark = randomUUID();
  const reply = await chat.create({ ...ask, store: true, metadata: { mark } });
  assert.deepEqual((await all(chat.list({ metadata: { mark } }))).map((each) => each.id), [reply.id]);
  assert.equal((await chat.retrieve(reply.id)).choices[0].message.content, reply.choices[0].message.content);
  assert.equal((await all(chat.messages.list(reply.id)))[0].content, ask.messages[0].content);
  assert.equal((await chat.update(reply.id, { metadata: { mark, seen: "yes" } })).metadata.seen, "yes");
  assert.ok((await chat.delete(reply.id)).deleted);
  await assert.rejects(chat.retrieve(reply.id), OpenAI.NotFoundError);
});

test("an Idempotency-Key brings the same reply again", async () => {
  const headers = { "Idempotency-Key": randomUUID() };
  const [first, second] = [await chat.create(ask, { headers }), await chat.create(ask, { headers })];
  assert.equal(first.id, second.id);
});

test("errors are of the right class and name the field", async () => {
  await assert.rejects(chat.create({ ...ask, temperature: 3 }), (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
  await assert.rejects(chat.create({ ...ask, model: "nobody" }), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  await assert.rejects(new OpenAI({ apiKey: "nonsense", maxRetries: 0 }).models.list(), OpenAI.AuthenticationError);
});

test("a used-up budget is not retried", async () => {
  let sent = 0;
  const counting = (...given) => ((sent += 1), fetch(...given));
  const broke = new OpenAI({ apiKey: brokeKey, maxRetries: 3, fetch: counting });
  await assert.rejects(broke.chat.completions.create(ask), (error) => error instanceof OpenAI.RateLimitError && error.code === "insufficient_quota");
  assert.equal(sent, 1);
});
