// The health of an experiment: the split, units that got all of the treatment, requests that are not analysed, and the
// lag of the sums.

import { Code } from "../../components/button.js";
import { Chart } from "../../components/charts/chart.js";
import { Stat, Stats } from "../../components/charts/stat.js";
import { Loaded, Notice } from "../../components/feedback.js";
import { Num } from "../../components/numbers.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { useApi } from "../../lib/data.js";
import { coloursOf } from "../../lib/colours.js";
import { count, percent, plural, seconds } from "../../lib/format/format.js";
import { html, useCallback } from "../../lib/html.js";
import { useWhileTraffic } from "../../lib/live.js";
import { utcDay } from "../../lib/format/time.js";
import { experimentPath } from "./paths.js";
import { IsControl } from "./tabs.js";
import { reasonInWords } from "./words.js";

const EVERY_MS = 10_000;
const TONES = { healthy: "good", warning: "warn", broken: "bad" };
const LAG_S = 5;
const DAY_S = 86_400;

export function Health({ projectId, experiment }) {
  const health = useApi(experimentPath(projectId, experiment.id, "/health"), {}, { every: EVERY_MS });
  const exposures = useApi(experimentPath(projectId, experiment.id, "/exposures"), {}, { every: EVERY_MS });
  useWhileTraffic(useCallback(() => (health.reload(), exposures.reload()), [health.reload, exposures.reload]));
  return html`
    <${Loaded} from=${health} what="load the experiment's health">
      ${(found) => html`
        <${Problems} found=${found} experiment=${experiment} />
        <${Stats}>
          <${Stat}
            title="Units analysed"
            value=${count(found.analysed_units)}
            hint=${found.is_srm ? "not split as declared" : found.analysed_units ? "split as declared" : "none so far"}
            tone=${found.is_srm ? "bad" : undefined}
          />
          <${Stat}
            title="Got the whole treatment"
            value=${percent(complied(found))}
            hint="of the arms beside the control"
          />
          <${Stat} title="Gave feedback" value=${percent(found.answer_rate)} hint="of the units" />
          <${Stat} title="Not analysed" value=${count(total(found.not_analysed))} hint="requests" />
          <${Stat}
            title="Counted until"
            value=${found.lag_seconds < LAG_S ? "now" : `${seconds(found.lag_seconds)} ago`}
            hint=${
              found.num_waiting
                ? `${plural(found.num_waiting, "event")} ${found.num_waiting === 1 ? "waits" : "wait"}`
                : "all is counted"
            }
            tone=${found.lag_seconds < LAG_S ? undefined : "warn"}
          />
        <//>
        <${Split} found=${found} />
        <${ByDay} days=${exposures.data?.data} experiment=${experiment} />
        <div class="grid-2">
          <${NotAnalysed} reasons=${found.not_analysed} />
          <${Busy} units=${found.busy_units} />
        </div>
      `}
    <//>
  `;
}

const total = (reasons) => Object.values(reasons).reduce((sum, number) => sum + number, 0);

/**
 * Return the share of treatments' units that got all of their treatment. The control's units do not count, since they
 * have none to miss.
 */
function complied({ arms }) {
  const treated = arms.slice(1).filter(({ compliance }) => compliance !== null);
  const units = treated.reduce((sum, each) => sum + each.units, 0);
  return units ? treated.reduce((sum, each) => sum + each.units * each.compliance, 0) / units : null;
}

function Problems({ found: { status, problems, analysed_units: units }, experiment: { model } }) {
  if (problems.length === 0 && units === 0)
    return html`
      <${Notice} title="No unit has taken part yet">
        Whether it works as declared shows once requests for “${model}” say whose they are.
      <//>
    `;
  if (problems.length === 0)
    return html`
      <${Notice} tone="good" title="It works as declared">
        Units are split as they should be, and what they do is counted.
      <//>
    `;
  return html`
    <${Notice}
      tone=${TONES[status]}
      title=${status === "broken" ? "The results are not to be believed" : "Something deserves a look"}
    >
      <span class="plan">
        ${problems.map((text) => html`<span key=${text}>${text}</span>`)}
      </span>
    <//>
  `;
}

function Split({ found }) {
  const columns = [
    {
      key: "name",
      title: "Arm",
      render: ({ name, place }) => html`
        <span>
          ${name} <${IsControl} name=${name} place=${place} />
        </span>
      `,
    },
    { key: "units", title: "Units", format: "count", total: true },
    { key: "expected_units", title: "Expected", format: "count", total: true },
    {
      key: "off",
      title: "Off by",
      format: "change",
      value: ({ units, expected_units: expected }) => (expected ? units / expected - 1 : null),
    },
    { key: "compliance", title: "Whole treatment", format: "percent" },
  ];
  return html`
    <${Section}
      title="The split"
      hint="Chance makes arms differ a little. What is more than chance is said above, however often anybody looks."
    >
      <${Table}
        name="split"
        label="The split"
        columns=${columns}
        rows=${found.arms.map((arm, place) => ({ ...arm, place }))}
        rowKey=${({ name }) => name}
        filter=${false}
      />
    <//>
  `;
}

function ByDay({ days, experiment }) {
  if (!days?.length) return null;
  const names = experiment.arms.map(({ name }) => name);
  const colours = coloursOf(names);
  const dates = [...new Set(days.map(({ day }) => day))].sort();
  const on = (date, name) =>
    days.filter(({ day, arm }) => day === date && arm === name).reduce((sum, { units }) => sum + units, 0);
  const series = names.map((name, place) => ({
    key: name,
    label: name,
    color: colours[place],
    values: dates.map((date) => on(date, name)),
  }));
  return html`
    <${Chart}
      title="New units a day"
      hint="By the day of their first request, in UTC."
      kind="bars"
      zoom=${false}
      when=${utcDay}
      whenTitle="Day"
      step=${DAY_S}
      times=${dates.map((date) => Date.parse(`${date}T00:00:00Z`) / 1000)}
      series=${series}
    />
  `;
}

function NotAnalysed({ reasons }) {
  const rows = Object.entries(reasons).sort(([, a], [, b]) => b - a);
  const most = rows[0]?.[1] ?? 1;
  return html`
    <${Section}
      title="Requests that are not analysed"
      hint="They got the control, or the arm that they asked for."
      card
    >
      ${
        rows.length === 0
          ? html`<p class="faint">None so far.</p>`
          : html`
            <div class="bars">
              ${rows.map(
                ([reason, number]) => html`
                  <div key=${reason} class="bar-row">
                    <i style=${{ width: `${(100 * number) / most}%` }}></i>
                    <span>${reasonInWords(reason)}</span>
                    <${Num} value=${number} />
                  </div>
                `,
              )}
            </div>
          `
      }
    <//>
  `;
}

function Busy({ units }) {
  return html`
    <${Section}
      title="Units with many requests"
      hint="More than one in a hundred is of a single unit: perhaps “anonymous”, or a robot."
      card
    >
      ${
        units.length === 0
          ? html`<p class="faint">None.</p>`
          : html`
            <div class="state-list">
              ${units.map(
                ({ digest, num_requests: number, share }) => html`
                  <div key=${digest} class="state-row">
                    <${Code} text=${digest} max=${16} what="digest" />
                    <span>
                      ${plural(number, "request")}, ${percent(share)}
                    </span>
                  </div>
                `,
              )}
            </div>
          `
      }
    <//>
  `;
}
