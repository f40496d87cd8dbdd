// The AI SDK over Responses: its provider for OpenAI, which refers to stored items, and the one for Open Responses.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const { CONFORMANCE_MODEL: name, OPENAI_API_KEY: apiKey, OPENAI_BASE_URL: baseURL } = process.env;
const ANSWER = "In Paris it is sunny, and it is noon.";
const providers = {
  openai: createOpenAI({ apiKey, baseURL })(name),
  "open-responses": createOpenResponses({ name: "lorikeet", apiKey, url: `${baseURL}/responses` })(name),
};
const tools = {
  get_weather: tool({ description: "The weather of a city.", inputSchema: z.object({ city: z.string() }), execute: async () => "sunny" }),
  get_time: tool({ description: "The time in a city.", inputSchema: z.object({ city: z.string() }), execute: async () => "noon" }),
};
const ask = (model, script) => ({ model, tools, prompt: `[script:${script}] How is Paris?`, stopWhen: isStepCount(5), maxRetries: 0 });

for (const [provider, model] of Object.entries(providers)) {
  for (const script of ["two_tools", "two_tools_at_once", "thoughtful"]) {
    test(`${provider}: two tools are called and answered: ${script}`, async () => {
      const reply = await generateText(ask(model, script));
      assert.equal(reply.text, ANSWER);
      assert.deepEqual(reply.steps.flatMap((step) => step.toolResults.map((result) => result.output)), ["sunny", "noon"]);
      assert.equal(reply.finishReason, "stop");
    });
  }

  test(`${provider}: a streamed loop says the same`, async () => {
    const stream = streamText(ask(model, "thoughtful"));
    let text = "";
    for await (const part of stream.textStream) text += part;
    assert.equal(text, ANSWER);
    assert.ok((await stream.usage).outputTokens > 0);
  });

  test(`${provider}: reasoning is apart from the text`, async () => {
    const reply = await generateText({ model, prompt: "[script:thought] 2 + 2?", maxRetries: 0 });
    assert.equal(reply.text, "The answer is 4.");
  });

  test(`${provider}: output has a type`, async () => {
    const schema = z.object({ city: z.string(), temperature: z.number() });
    const reply = await generateText({ model, prompt: "[script:typed] How is Paris?", output: Output.object({ schema }), maxRetries: 0 });
    assert.deepEqual(reply.output, { city: "Paris", temperature: 21 });
  });
}

test("openai: nothing is stored where the client wants that", async () => {
  const reply = await generateText({ ...ask(providers.openai, "thoughtful"), providerOptions: { openai: { store: false, include: ["reasoning.encrypted_content"] } } });
  assert.equal(reply.text, ANSWER);
});
