// Words about results: the roles of metrics, the reasons why copies were not run, and what a row still waits for.

import { windowInWords } from "../words.js";

/** The roles of metrics: each with its title and a hint. */
export const ROLES = [
  [
    "primary",
    "What decides",
    "Declared before the start. Differences are from the control, each above the interval of those that " +
      "are not excluded. Intervals hold whenever you look, and however often.",
  ],
  [
    "guardrail",
    "Guardrails",
    "What must not become worse. Each is judged on its own, and not at the experiment's level: a " +
      "guardrail that nothing harms raises a false alarm in at most 1 % of experiments, however often it " +
      "is looked at.",
  ],
  ["secondary", "Only watched", "Of those that are marked as different, few are false; they decide nothing."],
];

/** The reasons why a copy of a request was not run, in words. */
export const OUTCOMES = {
  full: "too many waited",
  late: "waited for too long",
  client_gone: "the client had left",
  refused: "refused",
  unavailable: "no engine took it",
  target_gone: "the target is gone",
  stopped: "the gateway stopped",
};

/**
 * Return what rows without data wait for: the end of the first unit's outcome window, which cannot come before the
 * window of a unit that came at the start ends.
 */
export const waitingOf = ({ started_at: startedAt, analysis }) => ({
  firstAt: startedAt + analysis.outcome_window_seconds,
  windowText: windowInWords(analysis),
});
