// The states of a version, in words and colours:
// inspected -> probed -> ready -> retired -> deleted, and from the first two also -> rejected -> deleted.

export const STATES = [
  ["inspected", "It fits the base model."],
  ["probed", "An engine is trying it."],
  ["ready", "It can be called, and promoted."],
  ["retired", "Out of use for good."],
  ["rejected", "The inspection or an engine refused it."],
];
export const TONE = { inspected: "info", probed: "info", ready: "good", rejected: "bad", retired: "" };
