// Words about servers of other makers: their kinds, the owners of their keys, and the effect of a change.

import { ApiError, post } from "../../../lib/api.js";
import { plural } from "../../../lib/format/format.js";
import { whoIsChosen } from "../access.js";
import { pathOf } from "../words.js";

export const KINDS = [
  ["openai", "Any server with OpenAI's chat completions, or a provider"],
  ["vllm", "vLLM"],
  ["sglang", "SGLang"],
  ["llamacpp", "llama.cpp's server"],
  ["tgi", "TGI"],
  ["ollama", "Ollama"],
  ["kserve", "Triton, by its generate extension"],
  ["lorikeet-gateway", "The gateway of another Lorikeet"],
];

export const OWN_KEYS = [
  ["none", "The key of this pool alone"],
  ["allowed", "A tenant's own key where it brings one, else this pool's"],
  ["required", "A tenant's own key: others are refused"],
];

export const BASE_HINT =
  "With the model that the servers run (as in a pool of our own engines), prompts are counted exactly " +
  "and adapters can answer. Without it, text goes to the servers as it is.";

export const SETTINGS_HINT =
  "One NAME=VALUE in a line, such as served_model=big-1, max_in_flight=64 or first_token_seconds=30.";

export const kindOf = ({ engine }) => KINDS.find(([key]) => key === engine)?.[1] ?? engine;

/** Return whether a pool's servers are of another maker and not started by agents. */
export const isForeign = ({ engine, is_managed: isManaged }) => Boolean(engine) && engine !== "lorikeet" && !isManaged;

export const whoseKeys = ({ settings }) => OWN_KEYS.find(([key]) => key === (settings.own_keys ?? "none"))[1];

export const linesOf = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

export async function keyRefused(id, key) {
  try {
    await post(pathOf(id, "/key"), { key });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return error.message;
  }
  return "";
}

export function consequence({ name, urls, model, ...access }) {
  const number = Math.max(1, linesOf(urls).length);
  const first = model.trim() ? `The hosts prepare ${model.trim()} for its tokenizer. Then ` : "";
  return (
    `${first}${first ? "e" : "E"}ach gateway asks the ${plural(number, "server")} how ` +
    `${number === 1 ? "it is" : "they are"}, and sends requests to those that answer. ` +
    `${whoIsChosen(access)} can ask for “${name.trim() || "the name"}”. Nothing is started or stopped ` +
    "there."
  );
}
