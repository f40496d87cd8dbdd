// The AI SDK over its provider for OpenAI-compatible servers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embed, embedMany, generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const { CONFORMANCE_BASE: base, CONFORMANCE_MODEL: model, OPENAI_API_KEY: apiKey, OPENAI_BASE_URL: baseURL } = process.env;
const provider = createOpenAICompatible({ name: "lorikeet", apiKey, baseURL, includeUsage: true, supportsStructuredOutputs: true });
const ask = { model: provider(model), prompt: "What is the capital of France?", maxOutputTokens: 4, temperature: 0, maxRetries: 0 };
const longer = { ...ask, maxOutputTokens: 64 };
// A small model makes as many calls as it may.
const calling = { ...longer, providerOptions: { lorikeet: { parallel_tool_calls: false } } };
const City = z.object({ capital: z.boolean(), size: z.enum(["small", "large"]) });
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
  execute: async ({ city }) => ({ city, sky: "clear" }),
});

test("generateText", async () => {
  const reply = await generateText(ask);
  assert.ok(reply.text.length > 0);
  assert.equal(reply.finishReason, "length");
  assert.equal(reply.usage.outputTokens, 4);
});

test("generateText with a system prompt, a seed, penalties and stop sequences", async () => {
  const reply = await generateText({ ...ask, instructions: "Answer in French.", temperature: 1, seed: 3, topP: 0.9, frequencyPenalty: 0.1, presencePenalty: 0.1, stopSequences: ["zzz"] });
  assert.ok(reply.text.length > 0);
});

test("streamText says what generateText says", async () => {
  const stream = streamText(ask);
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, (await generateText(ask)).text);
  assert.equal((await stream.usage).outputTokens, 4);
  assert.equal(await stream.finishReason, "length");
});

test("Output.object, whole", async () => {
  City.parse((await generateText({ ...longer, output: Output.object({ schema: City }) })).output);
});

test("Output.object, streamed in parts", async () => {
  const stream = streamText({ ...longer, output: Output.object({ schema: City }) });
  let last = null;
  for await (const partial of stream.partialOutputStream) last = partial;
  City.parse(last);
});

test("Output.choice", async () => {
  const reply = await generateText({ ...longer, output: Output.choice({ options: ["sunny", "rainy"] }) });
  assert.ok(["sunny", "rainy"].includes(reply.output));
});

test("a required tool is called and its result goes back", async () => {
  const reply = await generateText({
    ...calling,
    tools: { weather },
    stopWhen: isStepCount(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
  });
  assert.equal(reply.steps.length, 2);
  assert.equal(reply.steps[0].finishReason, "tool-calls");
  assert.equal(reply.steps[0].toolResults[0].output.sky, "clear");
});

test("a named tool", async () => {
  const reply = await generateText({ ...calling, tools: { weather }, toolChoice: { type: "tool", toolName: "weather" } });
  assert.ok(["Paris", "Rome"].includes(reply.toolCalls[0].input.city));
});

test("a streamed tool call", async () => {
  const stream = streamText({ ...calling, tools: { weather }, toolChoice: "required" });
  const kinds = new Set();
  for await (const part of stream.fullStream) kinds.add(part.type);
  assert.ok(kinds.has("tool-call") && kinds.has("tool-result") && !kinds.has("error"));
});

test("embed and embedMany", async () => {
  const embedding = provider.embeddingModel(base);
  assert.ok((await embed({ model: embedding, value: "a parrot" })).embedding.length > 0);
  assert.equal((await embedMany({ model: embedding, values: ["a parrot", "a ship"] })).embeddings.length, 2);
});

test("completion models", async () => {
  const reply = await generateText({ ...ask, model: provider.completionModel(base), prompt: "Once upon a time" });
  assert.ok(reply.text.length > 0);
});

test("errors carry the status and the message", async () => {
  await assert.rejects(generateText({ ...ask, model: provider("nobody") }), (error) => APICallError.isInstance(error) && error.statusCode === 404 && !error.isRetryable);
});
