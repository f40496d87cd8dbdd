// The Agents SDK of JavaScript: loops with two tools over the engine that plays scripts.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Agent, OpenAIResponsesModel, run, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

const { CONFORMANCE_MODEL: name, OPENAI_API_KEY: apiKey, OPENAI_BASE_URL: baseURL } = process.env;
setTracingDisabled(true);
const ANSWER = "In Paris it is sunny, and it is noon.";
const model = new OpenAIResponsesModel(new OpenAI({ apiKey, baseURL, maxRetries: 0 }), name);
const tools = (called) => [
  tool({ name: "get_weather", description: "The weather of a city.", parameters: z.object({ city: z.string() }), execute: async ({ city }) => (called.push(`weather of ${city}`), "sunny") }),
  tool({ name: "get_time", description: "The time in a city.", parameters: z.object({ city: z.string() }), execute: async ({ city }) => (called.push(`time in ${city}`), "noon") }),
];

for (const script of ["two_tools", "two_tools_at_once", "thoughtful"]) {
  test(`two tools are called and answered: ${script}`, async () => {
    const called = [];
    const agent = new Agent({ name: "guide", instructions: "Use your tools.", tools: tools(called), model });
    const result = await run(agent, `[script:${script}] How is Paris?`);
    assert.equal(result.finalOutput, ANSWER);
    assert.deepEqual(called, ["weather of Paris", "time in Paris"]);
  });
}

test("a streamed loop says the same", async () => {
  const called = [];
  const agent = new Agent({ name: "guide", instructions: "Use your tools.", tools: tools(called), model });
  const result = await run(agent, "[script:thoughtful] How is Paris?", { stream: true });
  let text = "";
  for await (const part of result.toTextStream()) text += part;
  await result.completed;
  assert.equal(text, ANSWER);
  assert.equal(result.finalOutput, ANSWER);
});

test("the server keeps the state", async () => {
  const agent = new Agent({ name: "guide", tools: tools([]), model });
  const first = await run(agent, "[script:two_tools] How is Paris?");
  const second = await run(agent, "Thanks!", { previousResponseId: first.lastResponseId });
  assert.equal(second.finalOutput, "Fine.");
});
