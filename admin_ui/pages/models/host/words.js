// The words for one host: its lease, its servers, and what happens when its agent is gone.

import { duration } from "../../../lib/format/format.js";

export const pathOf = (id) => `/hosts/${encodeURIComponent(id)}`;

/** Return the state of a host's lease in words: held, given back, or ended some time ago. */
export function lease({ is_alive: isAlive, away_seconds: seconds }) {
  if (isAlive) return "held by its agent";
  if (seconds === null) return "given back, with no engine left";
  return `ended ${duration(Math.round(seconds))} ago`;
}

/** Return the kinds of servers that the host's agent has programs for. */
export const serversOf = ({ programs }) => (programs.length ? programs.join(", ") : "Lorikeet alone");

/** Return what happens to a host without an agent, in words. */
export function away({ away_seconds: seconds, num_replicas: number }) {
  if (seconds === null) return "Its last agent ended with all of its engines. A new agent takes the host up again.";
  return number
    ? "Its replicas go to other hosts half a minute after the lease has ended, where there is room. Its " +
        "engines serve on for gateways that still reach them."
    : "Nothing runs there.";
}
