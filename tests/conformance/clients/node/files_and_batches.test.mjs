// The official client for Node: files, uploads part by part, batches.

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { createReadStream } from "node:fs";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import OpenAI, { toFile } from "openai";

const { CONFORMANCE_BASE: base, CONFORMANCE_MODEL: model } = process.env;
const openai = new OpenAI({ maxRetries: 0 });
const CHAT = "/v1/chat/completions";

function line(custom_id, fields = {}, url = CHAT) {
  const body = { model, max_tokens: 4, messages: [{ role: "user", content: "Hello" }], ...fields };
  return { custom_id, method: "POST", url, body };
}

async function begun(lines, endpoint = CHAT, fields = {}) {
  const content = lines.map((each) => (typeof each === "string" ? each : JSON.stringify(each)) + "\n").join("");
  const file = await openai.files.create({ file: await toFile(Buffer.from(content), "lines.jsonl"), purpose: "batch" });
  return openai.batches.create({ input_file_id: file.id, endpoint, completion_window: "24h", ...fields });
}

async function ended(batch) {
  while (["validating", "in_progress", "finalizing", "cancelling"].includes(batch.status)) {
    await setTimeout(100);
    batch = await openai.batches.retrieve(batch.id);
  }
  return batch;
}

async function linesOf(id) {
  const text = await (await openai.files.content(id)).text();
  return text.trim().split("\n").map((each) => JSON.parse(each));
}

test("a file is stored from a stream, listed, read and deleted", async () => {
  const path = join(tmpdir(), `lines-${randomBytes(6).toString("hex")}.jsonl`);
  await writeFile(path, "{}\n".repeat(1000));
  const made = await openai.files.create({
    file: createReadStream(path),
    purpose: "batch",
    expires_after: { anchor: "created_at", seconds: 3600 },
  });
  assert.deepEqual([made.bytes, made.expires_at - made.created_at], [3000, 3600]);
  const listed = [];
  for await (const file of openai.files.list({ purpose: "batch", limit: 2 })) listed.push(file.id);
  assert.ok(listed.includes(made.id));
  assert.equal(await (await openai.files.content(made.id)).text(), "{}\n".repeat(1000));
  assert.ok((await openai.files.delete(made.id)).deleted);
  await assert.rejects(openai.files.retrieve(made.id), OpenAI.NotFoundError);
});

test("a file comes part by part, with a check of the whole", async () => {
  const bytes = randomBytes(150_000);
  const upload = await openai.uploads.create({
    filename: "big.bin",
    purpose: "user_data",
    bytes: bytes.length,
    mime_type: "application/octet-stream",
  });
  const halves = [bytes.subarray(0, 70_000), bytes.subarray(70_000)];
  const parts = await Promise.all(
    halves.map(async (half) => openai.uploads.parts.create(upload.id, { data: await toFile(half, "part") })),
  );
  const md5 = createHash("md5").update(bytes).digest("hex");
  const done = await openai.uploads.complete(upload.id, { part_ids: parts.map((part) => part.id), md5 });
  assert.equal(done.status, "completed");
  assert.deepEqual(Buffer.from(await (await openai.files.content(done.file.id)).arrayBuffer()), bytes);
});

test("an upload is cancelled", async () => {
  const asked = { filename: "a.bin", purpose: "user_data", bytes: 10, mime_type: "application/octet-stream" };
  const upload = await openai.uploads.create(asked);
  assert.equal((await openai.uploads.cancel(upload.id)).status, "cancelled");
});

test("a batch runs each line once, over a base and an adapter", async () => {
  const lines = [...Array(8).keys()].map((number) => line(`line-${number}`, { model: number % 2 ? `${base}:pirate` : base }));
  const batch = await ended(await begun(lines, CHAT, { metadata: { topic: "greetings" } }));
  assert.deepEqual([batch.status, batch.error_file_id ?? null], ["completed", null]);
  assert.deepEqual(batch.request_counts, { total: 8, completed: 8, failed: 0 });
  assert.deepEqual(batch.metadata, { topic: "greetings" });
  const found = await linesOf(batch.output_file_id);
  assert.deepEqual(found.map((each) => each.custom_id).sort(), lines.map((each) => each.custom_id));
  for (const [number, each] of found.entries()) assert.equal(each.response.body.model, lines[number].body.model);
  const tokens = found.reduce((sum, each) => sum + each.response.body.usage.total_tokens, 0);
  assert.equal(tokens, batch.usage.total_tokens);
  const ids = [];
  for await (const each of openai.batches.list({ limit: 2 })) ids.push(each.id);
  assert.ok(ids.includes(batch.id));
});

test("lines that are refused are in the error file with their status", async () => {
  const batch = await ended(await begun([line("good"), line("hot", { temperature: 9 }), line("nobody", { model: "nobody" })]));
  assert.deepEqual(batch.request_counts, { total: 3, completed: 1, failed: 2 });
  const failed = await linesOf(batch.error_file_id);
  assert.deepEqual(failed.map((each) => [each.custom_id, each.response.status_code, each.error]), [["hot", 400, null], ["nobody", 404, null]]);
});

test("a file that is wrong fails the batch and names the line", async () => {
  const batch = await ended(await begun([line("one"), "{not json", line("one")]));
  assert.equal(batch.status, "failed");
  assert.deepEqual(batch.errors.data.map((each) => [each.line, each.code]), [[2, "invalid_json_line"], [3, "duplicate_custom_id"]]);
});

test("responses and embeddings run in batches", async () => {
  const asked = { max_tokens: undefined, messages: undefined, input: "Hello" };
  for (const [url, fields] of [["/v1/responses", { ...asked, max_output_tokens: 16 }], ["/v1/embeddings", asked]]) {
    const batch = await ended(await begun([line("a", fields, url), line("b", fields, url)], url));
    assert.equal(batch.request_counts.completed, 2, url);
  }
});

test("a batch is cancelled and keeps what was done", async () => {
  const lines = [...Array(200).keys()].map((number) => line(`${number}`, { max_tokens: 64 }));
  const batch = await begun(lines);
  assert.ok(["cancelling", "cancelled"].includes((await openai.batches.cancel(batch.id)).status));
  const cancelled = await ended(await openai.batches.retrieve(batch.id));
  assert.equal(cancelled.status, "cancelled");
  await assert.rejects(openai.batches.retrieve("batch_none"), OpenAI.NotFoundError);
});
