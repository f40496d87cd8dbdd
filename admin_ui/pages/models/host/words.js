// What is said of one host.

import { duration } from "../../../lib/format/format.js";

export const pathOf = (id) => `/hosts/${encodeURIComponent(id)}`;

/** What its lease is: held, given back, or ended some time ago. */
export function lease({ is_alive: isAlive, away_seconds: seconds }) {
  if (isAlive) return "held by its agent";
  if (seconds === null) return "given back, with no engine left";
  return `ended ${duration(Math.round(seconds))} ago`;
}

/** The kinds of servers that its agent has programs for. */
export const serversOf = ({ programs }) => (programs.length ? programs.join(", ") : "Lorikeet alone");

/** What becomes of a host without an agent. */
export function away({ away_seconds: seconds, num_replicas: number }) {
  if (seconds === null) return "Its last agent ended with all of its engines. A new agent takes the host up again.";
  return number
    ? "Its replicas go to other hosts half a minute after the lease has ended, where there is room. Its " +
        "engines serve on for gateways that still reach them."
    : "Nothing runs there.";
}
