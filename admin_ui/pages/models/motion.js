// The change of a pool's revision while it is under way: progress, differences, and the button that rolls it back.

import { Button } from "../../components/button.js";
import { Gauge } from "../../components/charts/gauge.js";
import { Section } from "../../components/page.js";
import { count } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { settingsOf } from "./words.js";

const ROLLOUTS = {
  "side by side":
    "Both revisions fit on the hosts: the new replicas start beside the present ones, and no request is refused.",
  "one after the other":
    "Both revisions do not fit on the hosts at once: a present replica makes room first. While none is " +
    "ready, requests are refused.",
};

/** The change that is under way. onCancel: false if the reader may not cancel it, or if no revision served before. */
export function InMotion({ pool, onCancel }) {
  const before = pool.revisions.find(({ revision }) => revision === pool.revision);
  const after = pool.revisions.find(({ revision }) => revision === pool.wanted_revision);
  const readyOf = (number) =>
    pool.replicas.filter(({ revision, state }) => revision === number && state === "ready").length;
  const mine = pool.replicas.filter(({ revision }) => revision === pool.wanted_revision);
  const step =
    after?.state === "preparing"
      ? 0
      : mine.length === 0
        ? 1
        : readyOf(pool.wanted_revision) < pool.num_replicas
          ? 2
          : 3;
  const steps = [
    "Prepare the model",
    "Find room",
    "Start and try replicas",
    ...(before ? [`Drain revision ${pool.revision}`] : []),
  ];
  const max = Math.max(1, pool.num_replicas);
  return html`
    <${Section}
      card
      title=${
        before
          ? `Revision ${pool.wanted_revision} takes the place of revision ${pool.revision}`
          : `Revision ${pool.wanted_revision} starts`
      }
      hint=${pool.why}
      actions=${onCancel && html`<${Button} onClick=${onCancel}>Give it up<//>`}
    >
      <div class="stack" aria-live="polite">
        <ol class="steps">
          ${steps.map(
            (name, place) => html`
              <li key=${name} aria-current=${place === step ? "step" : undefined}>
                ${place === step ? html`<b>${name}</b>` : name}
              </li>
            `,
          )}
        </ol>
        <div class="engine-gauges">
          <${Gauge}
            label="Revision ${pool.wanted_revision} ready"
            used=${readyOf(pool.wanted_revision)}
            max=${max}
            shown=${count}
            hint="replicas"
            warn=${1.01}
            bad=${1.01}
          />
          ${
            before &&
            html`
              <${Gauge}
                label="Revision ${pool.revision} still serving"
                used=${readyOf(pool.revision)}
                max=${max}
                shown=${count}
                hint="replicas"
                warn=${1.01}
                bad=${1.01}
              />
            `
          }
        </div>
        ${pool.rollout && html`<p>${ROLLOUTS[pool.rollout]}</p>`}
        ${before && after && html`<${Differences} before=${before} after=${after} />`}
      </div>
    <//>
  `;
}

function Differences({ before, after }) {
  const rows = [
    ["Model", before.model, after.model],
    ["Engine settings", settingsOf(before) || "as on the hosts", settingsOf(after) || "as on the hosts"],
  ];
  const bases = [before, after].map(({ base_digest: digest }) => digest?.slice(0, 12));
  if (bases[1]) rows.push(["Base", ...bases]);
  return html`
    <div class="table-scroll">
      <table class="diff">
        <thead>
          <tr>
            <th>
              <span class="visually-hidden">What</span>
            </th>
            <th>Revision ${before.revision}</th>
            <th>Revision ${after.revision}</th>
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            ([title, was, is]) => html`
              <tr key=${title} class=${was === is ? "" : "differs"}>
                <th scope="row">${title}</th>
                <td>${was}</td>
                <td>${is}</td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}
