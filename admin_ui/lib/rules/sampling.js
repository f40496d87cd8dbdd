// The numbers that say how an answer is drawn, as people type them: what is wrong with each, in the API's ranges.

import { number, whole } from "./checks.js";

const MOST = 2 ** 31 - 1;
const penalty = (text) => number(text, { min: -2, max: 2 });
const share = (text) => number(text, { min: 0, max: 1 });

const CHECKS = {
  temperature: (text) => number(text, { min: 0, max: 2 }),
  top_p: share,
  top_k: (text) => whole(text, { min: -1, max: MOST, optional: true }),
  min_p: share,
  max_tokens: (text) => whole(text, { min: 1, max: MOST, optional: true }),
  presence_penalty: penalty,
  frequency_penalty: penalty,
  repetition_penalty: (text) => number(text, { min: 0.001, max: 2 }),
  seed: (text) => whole(text, { min: Number.MIN_SAFE_INTEGER, optional: true }),
};

/**
 * Return {name: sentence} of the sampling numbers that are wrong. texts: by name; an empty text means that none is
 * given, and other names are ignored.
 */
export function checkSampling(texts) {
  const wrong = Object.entries(CHECKS).map(([name, check]) => [name, name in texts ? check(texts[name]) : undefined]);
  return Object.fromEntries(wrong.filter(([, sentence]) => sentence));
}
