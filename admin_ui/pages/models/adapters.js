// The adapters of servers that load adapters only when they start: those that wait, and the button that starts the
// servers anew with all of them.

import { Confirm } from "../../components/dialog.js";
import { Loaded } from "../../components/feedback.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate, useApi } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { pathOf, replicas } from "./words.js";

const NAMED = 10;

export function LoadAdapters({ pool, onClose }) {
  const found = useApi(pathOf(pool.id, "/adapters"));
  return html`
    <${Confirm}
      title="Start the servers of ${pool.name} anew?"
      verb="Start anew"
      danger=${false}
      onClose=${onClose}
      act=${async () => {
        const { wanted_revision: wanted } = await post(pathOf(pool.id, "/adapters"));
        invalidate("/pools", "/hosts");
        toast(
          wanted === pool.wanted_revision
            ? `${pool.name} has all adapters already`
            : `${pool.name} changes to revision ${wanted}`,
        );
      }}
    >
      <${Loaded} from=${found} what="load the adapters">
        ${(adapters) => html`<${Waiting} ...${adapters} />`}
      <//>
    <//>
  `;
}

function Waiting({ loaded, waiting, num_removed: removed, num_replicas: number, rollout }) {
  if (waiting.length === 0 && removed === 0)
    return html`<p>The servers have all adapters of their base: ${plural(loaded.length, "adapter")}.</p>`;
  const names = waiting
    .slice(0, NAMED)
    .map(({ name }) => name)
    .join(", ");
  const more = waiting.length > NAMED ? ` and ${waiting.length - NAMED} more` : "";
  return html`
    ${
      waiting.length > 0 &&
      html`
        <p>
          ${plural(waiting.length, "adapter")} ${waiting.length === 1 ? "waits" : "wait"} for a start: ${names}
          ${more}. ${plural(loaded.length, "adapter")} ${loaded.length === 1 ? "is" : "are"} loaded.
        </p>
      `
    }
    ${
      removed > 0 &&
      html`
        <p>
          ${plural(removed, "adapter")} that ${removed === 1 ? "was" : "were"} removed${" "}
          ${removed === 1 ? "leaves" : "leave"} the servers.
        </p>
      `
    }
    <p>${HOW[rollout]?.(number) ?? "No host has room for a start now: it waits until one has."}</p>
  `;
}

const HOW = {
  "side by side": (number) =>
    `${replicas(number)} ${number === 1 ? "starts" : "start"} beside the present ones, and no request is refused.`,
  "one after the other": (number) =>
    `${replicas(number)} ${number === 1 ? "is" : "are"} started anew one after the other; of a single ` +
    "one requests are refused meanwhile.",
};
