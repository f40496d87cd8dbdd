// What an experiment found: one metric over time, and each metric of each arm beside the control with what may be
// concluded.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Chart } from "../../components/charts/chart.js";
import { Empty, Loaded, Notice } from "../../components/feedback.js";
import { Select } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useApi } from "../../lib/data.js";
import { coloursOf } from "../../lib/colours.js";
import { change, plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { useQuery } from "../../lib/router.js";
import { useMonthlyCost } from "../../lib/projects_api.js";
import { can } from "../../lib/session.js";
import { absoluteOf, metricsOf, relativeOf, rowsOf } from "./look.js";
import { experimentPath } from "./paths.js";
import { ByAge } from "./ages.js";
import { Exports } from "./exports.js";
import { Judged } from "./judged.js";
import { Segments } from "./segments.js";
import { IsControl } from "./tabs.js";
import { Difference, WORD, concludedOf } from "./verdicts.js";
import {
  isProven,
  metricOf,
  metricTitle,
  percentsSpaced,
  servedBy,
  shownDifference,
  shownValue,
  windowInWords,
} from "./words.js";

const DAY_S = 86_400;
const EVERY_MS = 60_000;
const ROLES = [
  [
    "primary",
    "What decides",
    "Declared before the start. Differences are from the control, each above the interval of those that are not excluded. Intervals hold whenever you look, and however often.",
  ],
  [
    "guardrail",
    "Guardrails",
    "What must not become worse. Each is judged on its own, and not at the experiment's level: a guardrail that nothing harms raises a false alarm in at most 1 % of experiments, however often it is looked at.",
  ],
  ["secondary", "Only watched", "Of those that are marked as different, few are false; they decide nothing."],
];

export function Results({ projectId, experiment, results, own, ask }) {
  const timeline = useApi(experimentPath(projectId, experiment.id, "/timeline"), {}, { every: EVERY_MS });
  const { currency } = useMonthlyCost(projectId);
  const shared = { projectId, experiment, own, currency };
  return html`
    <${Loaded} from=${results} what="load the results">
      ${(look) => html`
        <${Verdict} projectId=${projectId} look=${look} experiment=${experiment} ask=${ask} />
        ${
          look.comparisons.length + look.quantiles.length === 0
            ? html`<${NotYet} experiment=${experiment} />`
            : html`
              <${OverTime} ...${shared} look=${look} days=${timeline.data?.data} />
              <${ByAge} ...${shared} look=${look} />
            `
        }
        <${ArmUnits} look=${look} experiment=${experiment} />
        ${look.shadow && html`<${ShadowArm} shadow=${look.shadow} currency=${currency} />`}
        ${ROLES.map(
          ([role, title, hint]) => html`
            <${OfRole} key=${role} ...${shared} look=${look} role=${role} title=${title} hint=${hint} />
          `,
        )}
        <${Judged} ...${shared} look=${look} />
        <${Segments} ...${shared} />
        <${Exports} projectId=${projectId} experiment=${experiment} />
      `}
    <//>
  `;
}

function Verdict({ projectId, look, experiment: { decided_arm: decided, possible }, ask }) {
  const { is_srm: isSrm, may_decide: may, conclusion } = look;
  if (isSrm)
    return html`
      <${Notice} tone="bad" title="Units are not split as declared">
        Nothing here is to be believed until that is mended: something keeps units of one arm from being counted.
        Health shows where.
      <//>
    `;
  const isKnown = may && [...look.comparisons, ...look.quantiles].some(isProven);
  const isOver = decided !== null || isKnown;
  const stops = isKnown && possible.includes("stop") && can("experiments.write", projectId);
  return html`
    <${Notice}
      tone=${isKnown ? "good" : "info"}
      title=${isOver ? "What may be concluded" : "What may be concluded so far"}
      action=${
        stops &&
        html`
          <${Button} small onClick=${() => ask("stop")}>
            Stop, then choose an arm
          <//>
        `
      }
    >
      ${percentsSpaced(conclusion)}
      ${decided === null && isKnown ? " Intervals hold although you look now, and again later." : ""}
    <//>
  `;
}

function ArmUnits({ look, experiment }) {
  const columns = [
    {
      key: "name",
      title: "Arm",
      render: ({ name, place, ended, chosen }) => html`
        <span>
          ${name} <${IsControl} name=${name} place=${place} /> ${ended && html`<${Badge}>ended<//>`}${" "}
          ${chosen && html`<${Badge} tone="good">chosen<//>`}
        </span>
      `,
    },
    { key: "model", title: "Serves", render: ({ model }) => html`<code>${model}</code>` },
    { key: "share", title: "Of new units", format: "percent" },
    { key: "units", title: "Units", format: "count", total: true },
    { key: "compliance", title: "Whole treatment", format: "percent" },
  ];
  const rows = experiment.arms.map((arm, place) => ({
    place,
    ...arm,
    ...look.arms[place],
    chosen: arm.name === experiment.decided_arm,
    model: servedBy(arm),
  }));
  return html`
    <${Table}
      name="arms"
      label="Units by arm"
      columns=${columns}
      rows=${rows}
      rowKey=${({ name }) => name}
      filter=${false}
    />
  `;
}

const OUTCOMES = {
  full: "too many waited",
  late: "waited for too long",
  client_gone: "the client had left",
  refused: "refused",
  unavailable: "no engine took it",
  target_gone: "the target is gone",
  stopped: "the gateway stopped",
};

/** Beside the arms, and not compared with them: nobody got its answers, and copies wait behind requests. */
function ShadowArm({ shadow, currency }) {
  const times = ({ p50, p95 }) =>
    p50 === null
      ? html`<span class="faint">–</span>`
      : html`
        <span class="num">
          ${shownValue("ttft_ms", p50, currency, [])}
          <br />
          <small class="faint">${shownValue("ttft_ms", p95, currency, [])}</small>
        </span>
      `;
  const columns = [
    {
      key: "name",
      title: "Arm",
      render: ({ name }) => html`
        <span>
          ${name} <${Badge}>shadow<//>
        </span>
      `,
    },
    { key: "requests", title: "Copies", format: "count" },
    { key: "errors", title: "Errors", format: "count" },
    { key: "completion_tokens", title: "Completion tokens", format: "count" },
    {
      key: "cost_nanos",
      title: "Cost",
      align: "end",
      render: ({ cost_nanos: nanos }) =>
        html`<span class="num">${shownValue("cost_nanos", nanos, currency, [])}</span>`,
    },
    ...[
      ["engine_ms", "On the engine, p50 and p95"],
      ["ttft_ms", "First token, p50 and p95"],
      ["latency_ms", "Whole, p50 and p95"],
    ].map(([key, title]) => ({
      key,
      title,
      align: "end",
      sort: false,
      csv: false,
      render: (row) => times(row[key]),
    })),
  ];
  const dropped = Object.entries(shadow.outcomes)
    .filter(([name]) => name in OUTCOMES)
    .map(([name, count]) => `${plural(count, "copy", "copies")}: ${OUTCOMES[name]}`);
  return html`
    <${Section}
      title="Shadow"
      hint="Copies of requests, whose answers nobody got. It is not compared with the arms; copies wait behind requests, so the time on the engine alone is that of the model."
    >
      <${Table}
        name="shadow"
        label="Shadow arm"
        columns=${columns}
        rows=${[shadow]}
        rowKey=${({ name }) => name}
        filter=${false}
      />
      ${dropped.length > 0 && html`<p class="hint">Not run: ${dropped.join("; ")}.</p>`}
    <//>
  `;
}

function NotYet({ experiment: { analysis } }) {
  return html`
    <${Empty} icon="clock" title="No unit's window has ended yet">
      What a unit does counts for ${windowInWords(analysis)} after its first request, and is in the results
      afterwards. Errors and refusals count at once.
    <//>
  `;
}

/**
 * The effect of each arm as looks at the end of each day had it, as a part of the control's value where it is told from
 * 0.
 */
function OverTime({ look, days: before, experiment, own, currency }) {
  const metrics = metricsOf(experiment.metrics);
  const [asked, ask] = useQuery("metric", "");
  const metric = metrics.includes(asked) ? asked : metrics[0];
  if (before === undefined) return null;
  const days = withLook(before, look);
  const arms = experiment.arms.slice(1).map(({ name }) => name);
  const colours = coloursOf(arms);
  const found = days.map(({ comparisons, quantiles }) =>
    [...comparisons, ...quantiles].filter((each) => each.metric === metric),
  );
  const isRelative = found.some((each) => each.some(relativeOf));
  const read = isRelative ? relativeOf : absoluteOf;
  const at = (arm, part) => found.map((each) => read(each.find(({ arm: name }) => name === arm))?.[part] ?? null);
  const series = arms.map((arm, place) => ({
    key: arm,
    label: arm,
    color: colours[place],
    values: at(arm, "value"),
    lows: at(arm, "low"),
    highs: at(arm, "high"),
  }));
  const times = days.map(({ day }) => Math.min(look.looked_at, Date.parse(`${day}T00:00:00Z`) / 1000 + DAY_S));
  const shown = isRelative ? change : (value) => shownDifference(metric, value, currency, own);
  const waits = concludedOf({ verdict: "waits" }, waitingOf(experiment));
  const options = metrics.map((name) => [name, metricTitle(name)]);
  return html`
    <div class="over-time">
      ${
        metrics.length > 1 &&
        html`<${Select} label="Metric over time" value=${metric} options=${options} onValue=${(name) => ask(name)} />`
      }
      <${Chart}
        title="${metricTitle(metric)}: difference from ${experiment.arms[0].name}"
        hint="The line is what was measured by the end of each day in UTC, today by now, the band all differences that are not excluded: one that leaves 0 outside is proven."
        times=${times}
        span=${[experiment.started_at, times.at(-1)]}
        series=${series}
        kind="band"
        shown=${shown}
        zoom=${false}
        height=${240}
        note="No interval yet. ${waits}"
      />
    </div>
  `;
}

/**
 * Days with the look that the tables below show in the place of the last one, which is the same sums read at another
 * moment: the picture and the tables never say different things.
 */
function withLook(days, look) {
  const day = days.at(-1)?.day ?? new Date(1000 * look.looked_at).toISOString().slice(0, 10);
  return [...days.slice(0, -1), { day, comparisons: look.comparisons, quantiles: look.quantiles }];
}

/** What rows wait for: a unit's window, of which the first cannot end before that of a unit that came at the start. */
const waitingOf = ({ started_at: startedAt, analysis }) => ({
  firstAt: startedAt + analysis.outcome_window_seconds,
  windowText: windowInWords(analysis),
});

function OfRole({ look, experiment, own, currency, role, title, hint }) {
  const rows = rowsOf(look, role, experiment);
  const waiting = waitingOf(experiment);
  if (rows.length === 0) return null;
  const value = (metric, estimate) =>
    estimate === undefined
      ? html`<span class="faint">–</span>`
      : html`<span class="num">${shownValue(metric, estimate, currency, own)}</span>`;
  const columns = [
    {
      key: "metric",
      title: "Metric",
      value: ({ metric }) => metricTitle(metric),
      render: ({ metric }) => html`
        <span>
          ${metricTitle(metric)}
          <br />
          <small class="faint">${metricOf(metric, own)}</small>
        </span>
      `,
    },
    { key: "arm", title: "Arm", hide: experiment.arms.length < 3 },
    {
      key: "control",
      title: experiment.arms[0].name,
      align: "end",
      sort: false,
      render: ({ metric, control }) => value(metric, control),
    },
    {
      key: "treatment",
      title: experiment.arms.length < 3 ? experiment.arms[1].name : "With the arm",
      align: "end",
      sort: false,
      render: ({ metric, treatment }) => value(metric, treatment),
    },
    {
      key: "difference",
      title: "Difference",
      align: "end",
      sort: false,
      csv: false,
      render: (row) => html`<${Difference} row=${row} own=${own} currency=${currency} />`,
    },
    {
      key: "verdict",
      title: "",
      sort: false,
      class: "shrink",
      render: ({ verdict }) => html`
        <${Badge} dot tone=${WORD[verdict][1]}>
          ${WORD[verdict][0]}
        <//>
      `,
    },
    {
      key: "text",
      title: "What may be concluded",
      sort: false,
      class: "name-cell text-cell",
      value: (row) => concludedOf(row, waiting),
    },
  ];
  return html`
    <${Section} title=${title} hint=${hint}>
      <${Table}
        name=${role}
        label=${title}
        columns=${columns}
        rows=${rows}
        rowKey=${({ metric, arm }) => `${metric} ${arm}`}
        filter=${false}
      />
    <//>
  `;
}
