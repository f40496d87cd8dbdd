// How an experiment is set up: its arms, whom it covers, what decides; what may still be changed, and all of it as
// JSON.

import { Badge } from "../../components/badge.js";
import { Button, Code } from "../../components/button.js";
import { Command } from "../../components/feedback.js";
import { Time } from "../../components/numbers.js";
import { Facts, Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { percent, plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { to } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { IsControl } from "./tabs.js";
import {
  coverageShown,
  daysDeclared,
  isOpen,
  metricTitle,
  servedBy,
  settingsInWords,
  sourceInWords,
  windowInWords,
} from "./words.js";

export function SetUp({ projectId, experiment, ask }) {
  const { id, state, model, unit, coverage, layer, holdout, analysis } = experiment;
  const mayWrite = can("experiments.write", projectId);
  const mayChange = mayWrite && isOpen(experiment);
  const button = (title, what) => html`
    <${Button} small onClick=${() => ask(what)}>
      ${title}
    <//>
  `;
  return html`
    <${Section}
      title="Arms"
      actions=${
        mayChange &&
        html`
          ${button("Change weights", "weights")}
          ${button("End an arm", "end")}
          ${experiment.shadow && button("Change the shadow's share", "shadow")}
        `
      }
    >
      <${Arms} experiment=${experiment} />
    <//>
    <div class="grid-2">
      <${Section}
        title="Whom it covers"
        card
        actions=${mayChange && coverage < 10_000 && button("Cover more", "coverage")}
      >
        <${Facts}
          rows=${[
            ["Asked for as", html`<${Code} text=${model} what="model string" />`],
            ["A unit is", sourceInWords(unit.from)],
            [
              "Coverage",
              `${coverageShown(coverage)} of the units${coverage < 10_000 ? "; all others get the control and are not counted" : ""}`,
            ],
            ["Layer", `${layer}: other experiments on it have no unit in common with this one`],
            ["Holdout", holdout ?? "none"],
          ]}
        />
      <//>
      <${Section} title="Statistics and times" card>
        <${Facts}
          rows=${[
            ["False alarms at most", percent(analysis.alpha)],
            ["Intervals tightest at", plural(analysis.tightest_at, "unit")],
            ["Outcomes count for", windowInWords(analysis)],
            ["Decided after", analysis.min_days ? daysDeclared(analysis.min_days) : "any time: no days are declared"],
            ...times(experiment),
          ]}
        />
      <//>
    </div>
    <${Section} title="Metrics" actions=${mayChange && button("Add a guardrail", "guardrail")}>
      <${Declared} experiment=${experiment} />
    <//>
    <${Section}
      title="Definition"
      hint="Version ${experiment.version}, as the API and the command line take it."
      actions=${
        mayWrite &&
        state === "draft" &&
        html`
          <${Button} small href=${to("experiments", projectId, id, "edit")}>
            Change the draft
          <//>
        `
      }
    >
      <div class="definition">
        <${Command} label="Definition" text=${JSON.stringify(definitionOf(experiment), null, 2)} />
      </div>
    <//>
  `;
}

const times = ({ created_at: created, started_at: started, stopped_at: stopped, decided_at: decided }) =>
  [
    ["Created", created],
    ["Started", started],
    ["Stopped", stopped],
    ["Decided", decided],
  ].map(([name, at]) => [name, at ? html`<${Time} at=${at} />` : undefined]);

/** What a new experiment like this one would be created with. */
export function definitionOf({ name, model, unit, coverage, layer, holdout, arms, metrics, analysis, shadow }) {
  const given = (values) => Object.fromEntries(Object.entries(values ?? {}).filter(([, value]) => value !== null));
  const targetOf = ({ model, defaults, mode }) => ({
    model,
    ...(Object.keys(given(defaults)).length && { defaults: given(defaults), mode }),
  });
  return {
    name,
    model,
    unit,
    coverage,
    layer,
    ...(holdout && { holdout }),
    arms: arms.map(({ name, weight, ended, target }) => ({
      name,
      weight,
      ...(ended && { ended }),
      target: targetOf(target),
    })),
    ...(shadow && { shadow: { name: shadow.name, share: shadow.share, target: targetOf(shadow.target) } }),
    metrics: { ...metrics, guardrails: metrics.guardrails.map(given) },
    analysis,
  };
}

function Arms({ experiment }) {
  const settings = ({ target }) => settingsInWords(target);
  const columns = [
    {
      key: "name",
      title: "Arm",
      render: ({ name, place, ended, isShadow }) => html`
        <span>
          ${name} <${IsControl} name=${name} place=${place} /> ${ended && html`<${Badge}>ended<//>`}${" "}
          ${isShadow && html`<${Badge}>shadow<//>`}
        </span>
      `,
    },
    {
      key: "model",
      title: "Serves",
      value: servedBy,
      render: ({ serves, target }) => html`
        <span>
          <code>${servedBy({ serves, target })}</code>
          ${
            serves &&
            serves.model !== target.model &&
            html`
              <br />
              <small class="faint">declared as ${target.model}</small>
            `
          }
        </span>
      `,
    },
    {
      key: "settings",
      title: "Its own settings",
      value: settings,
      render: (arm) =>
        settings(arm)
          ? html`<span title=${arm.target.defaults.system_prompt}>${settings(arm)}</span>`
          : html`<span class="faint">none</span>`,
    },
    {
      key: "share",
      title: "Of new units",
      value: ({ share }) => share,
      render: ({ share, isShadow }) => html`
        <span class="num">
          ${percent(share)}
          ${
            isShadow &&
            html`
              <br />
              <small class="faint">of requests, copied</small>
            `
          }
        </span>
      `,
    },
  ];
  const { arms, shadow } = experiment;
  const rows = [
    ...arms.map((arm, place) => ({ ...arm, place })),
    ...(shadow ? [{ ...shadow, share: shadow.share / 10_000, place: arms.length, isShadow: true }] : []),
  ];
  return html`
    <${Table} name="arms" label="Arms" columns=${columns} rows=${rows} rowKey=${({ name }) => name} filter=${false} />
  `;
}

function Declared({ experiment: { metrics } }) {
  const rows = [
    ...metrics.primary.map(({ metric, goal }) => ({
      metric,
      role: "decides",
      rule: goal === "increase" ? "more is better" : "less is better",
    })),
    ...metrics.guardrails.map(({ metric, margin, action }) => ({
      metric,
      role: "guardrail",
      rule: `${margin ? `up to ${percent(margin)} worse is tolerated; ` : ""}proven harm ${action === "pause" ? "pauses the experiment" : "raises an alert"}`,
    })),
    ...metrics.secondary.map((metric) => ({ metric, role: "watched", rule: "decides nothing" })),
  ];
  const columns = [
    {
      key: "metric",
      title: "Metric",
      value: ({ metric }) => metricTitle(metric),
      render: ({ metric }) => html`
        <span>
          ${metricTitle(metric)}
          ${
            metricTitle(metric) !== metric &&
            html`
              ${" "}
              <code class="faint">${metric}</code>
            `
          }
        </span>
      `,
    },
    {
      key: "role",
      title: "Role",
      render: ({ role }) => html`<${Badge} tone=${role === "decides" ? "info" : ""}>${role}<//>`,
    },
    { key: "rule", title: "Rule" },
  ];
  return html`
    <${Table}
      name="metrics"
      label="Metrics"
      columns=${columns}
      rows=${rows}
      rowKey=${({ metric, role }) => `${role} ${metric}`}
      filter=${false}
    />
  `;
}
