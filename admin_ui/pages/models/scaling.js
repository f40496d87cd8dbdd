// The number of a pool's replicas: its changes over time with their reasons, and the dialogs that let it follow the
// load between two bounds, or stay as it is.

import { Badge } from "../../components/badge.js";
import { Chart } from "../../components/charts/chart.js";
import { Confirm, Dialog } from "../../components/dialog.js";
import { Empty, Notice } from "../../components/feedback.js";
import { Form, TextField, useForm } from "../../components/form.js";
import { Facts, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { colourOf } from "../../lib/colours.js";
import { invalidate, useApi } from "../../lib/data.js";
import { duration, seconds } from "../../lib/format/format.js";
import { now, useRange } from "../../lib/format/time.js";
import { html } from "../../lib/html.js";
import { whole } from "../../lib/rules/checks.js";
import { pathOf, replicas } from "./words.js";

const EVERY_MS = 10_000;
const MOST = 100;
const DEFAULTS = { min_replicas: 1, max_replicas: 4, down_after_seconds: 300 };

export function ByTheLoad({ pool }) {
  const found = useApi(pathOf(pool.id, "/scalings"), { limit: MOST }, { every: EVERY_MS });
  const changes = found.data?.data;
  return html`
    <${Section}
      title="Number of replicas"
      hint=${pool.scaling ? "It follows the load between two bounds." : "It stays as it is set, whatever the load is."}
    >
      <div class="grid-main">
        <${Numbers} pool=${pool} changes=${changes ?? []} />
        ${
          pool.scaling &&
          html`
            <div class="card">
              <${Bounds} scaling=${pool.scaling} />
            </div>
          `
        }
      </div>
      <${Changes} found=${found} changes=${changes} />
    <//>
  `;
}

function Bounds({ scaling }) {
  const { min_replicas: least, max_replicas: most, down_after_seconds: after, outlook, start_seconds: start } = scaling;
  return html`
    <${Facts}
      rows=${[
        ["Fewest", replicas(least)],
        ["Most", replicas(most)],
        ["One less after", duration(after)],
        ["Now", outlook ?? "It has not served yet."],
        ["The last first start took", start === null ? undefined : seconds(start)],
      ]}
    />
  `;
}

function Numbers({ pool, changes }) {
  const { start, end } = useRange();
  const [times, values] = steps(pool.num_replicas, changes, start, Math.min(end, now()));
  const series = [{ key: "replicas", label: "Replicas wanted", color: colourOf(pool.id), values }];
  return html`
    <${Chart}
      title="Replicas wanted"
      times=${times}
      series=${series}
      kind="line"
      unit="count"
      sums=${false}
      note="None in this range"
    />
  `;
}

/** Return the points of a step line: one before each change and one at it. changes: newest first. */
export function steps(present, changes, from, till) {
  const times = [];
  const values = [];
  const add = (at, value) => {
    if (at > (times.at(-1) ?? -Infinity)) times.push(at), values.push(value);
    else values[values.length - 1] = value;
  };
  const within = changes.filter(({ at }) => at > from && at <= till).reverse();
  const later = changes.filter(({ at }) => at > till).at(-1);
  const last = later ? later.before : present;
  add(from, within.length ? within[0].before : last);
  for (const { at, before, after } of within) {
    add(at - 1, before);
    add(at, after);
  }
  add(till, last);
  return [times, values];
}

function Changes({ found, changes }) {
  const columns = [
    { key: "at", title: "When", format: "time" },
    {
      key: "after",
      title: "Replicas",
      align: "end",
      render: ({ before, after }) => html`
        <span class="num">
          ${before} → ${after}
        </span>
      `,
    },
    {
      key: "by",
      title: "By",
      render: ({ by }) => html`
        <${Badge} tone=${by === "autoscaler" ? "info" : ""}>${by === "autoscaler" ? "the load" : "an operator"}<//>
      `,
    },
    { key: "why", title: "Why", render: ({ why }) => (why ? why : html`<span class="faint">as it was set</span>`) },
  ];
  return html`
    <${Table}
      name="scalings"
      label="Changes of the number of replicas"
      columns=${columns}
      rows=${changes}
      error=${found.error}
      reload=${found.reload}
      loading=${found.loading}
      what="load the changes"
      filter=${false}
      empty=${html`<${Empty} icon="chart" title="The number has not changed yet">
          Each change is listed here with its reason.
        <//>`}
    />
  `;
}

export function FollowLoad({ pool, onClose }) {
  const {
    min_replicas: min,
    max_replicas: max,
    down_after_seconds: after,
  } = pool.scaling ?? { ...DEFAULTS, max_replicas: Math.max(DEFAULTS.max_replicas, pool.num_replicas) };
  const form = useForm(
    { min_replicas: String(min), max_replicas: String(max), down_after_seconds: String(after) },
    async (values) => {
      const scaling = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, Number(value)]));
      await post(pathOf(pool.id), { scaling });
      invalidate("/pools", "/hosts");
      onClose();
      toast(`${pool.name} follows its load`);
    },
    (values) => ({
      min_replicas:
        whole(values.min_replicas, { max: 1000 }) ??
        (Number(values.min_replicas) > Number(values.max_replicas) ? "It is more than the most." : undefined),
      max_replicas: whole(values.max_replicas, { min: 1, max: 1000 }),
      down_after_seconds: whole(values.down_after_seconds, { min: 10, max: 86_400 }),
    }),
  );
  return html`
    <${Dialog} title="Let ${pool.name} follow its load" onClose=${onClose}>
      <${Form} form=${form} verb="Follow the load" what="set the bounds" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("min_replicas")}
          label="Fewest replicas"
          type="number"
          min="0"
          max="1000"
          autofocus
        />
        <${TextField} ...${form.bind("max_replicas")} label="Most replicas" type="number" min="1" max="1000" />
        <${TextField}
          ...${form.bind("down_after_seconds")}
          label="Seconds unneeded before one goes"
          type="number"
          min="10"
          max="86400"
        />
        <${Notice} title="What will happen">${followed(pool, form.values)}<//>
      <//>
    <//>
  `;
}

function followed(
  { num_replicas: present, name },
  { min_replicas: min, max_replicas: max, down_after_seconds: after },
) {
  const [least, most] = [Number(min), Number(max)];
  const at =
    present < least
      ? `${replicas(least - present)} more ${least - present === 1 ? "starts" : "start"} at once. `
      : present > most
        ? `${replicas(present - most)} ${present - most === 1 ? "ends its" : "end their"} requests and ` +
          `${present - most === 1 ? "stops" : "stop"}. `
        : "";
  const zero =
    least === 0
      ? ` The last one stops when no request came for ${duration(Number(after))}; the next request to ` +
        `${name} waits for a start.`
      : "";
  return (
    `${at}More start at once when the load needs them, and one goes after ${duration(Number(after))} in ` +
    `which it was not needed.${zero}`
  );
}

export function StopFollowing({ pool, onClose }) {
  return html`
    <${Confirm}
      title="Keep ${replicas(pool.num_replicas)}?"
      verb="Keep the number"
      danger=${false}
      onClose=${onClose}
      act=${async () => {
        await post(pathOf(pool.id), { scaling: null });
        invalidate("/pools");
        toast(`${pool.name} follows its load no more`);
      }}
    >
      <p>
        ${pool.name} runs ${replicas(pool.num_replicas)} from then on, whatever the load is.
        ${pool.num_replicas === 0 ? " Nobody answers for it until it is scaled up." : ""}
      </p>
    <//>
  `;
}
