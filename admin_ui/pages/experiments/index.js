// The list of a tenant's experiments: the state of each, and what may be concluded from it so far.

import { Badge } from "../../components/badge.js";
import { Button } from "../../components/button.js";
import { Empty } from "../../components/feedback.js";
import { Num } from "../../components/numbers.js";
import { Page } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { get, pages } from "../../lib/api.js";
import { useApi } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html, useCallback } from "../../lib/html.js";
import { useWhileTraffic } from "../../lib/live.js";
import { pathOf } from "../../lib/projects_api.js";
import { useProjectId, useProjectNames } from "../../lib/projects.js";
import { navigate, to } from "../../lib/router.js";
import { useShortcut } from "../../lib/rules/keys.js";
import { can } from "../../lib/session.js";
import { experimentPath } from "./paths.js";
import { ChooseTenant, ExperimentTabs } from "./tabs.js";
import { hasResults, isOpen, isProven, percentsSpaced, stateInWords } from "./words.js";

const EVERY_MS = 10_000;
const MAX_LOOKS = 20;

/** Return all experiments of a project, the newest first; those that go on have `look`, their latest results. */
async function readWithLooks(path, query, { signal }) {
  const found = [];
  for await (const experiment of pages(path, query, { signal })) found.push(experiment);
  const projectId = decodeURIComponent(path.split("/")[2]);
  const looked = found.filter((each) => hasResults(each) && each.state !== "archived").slice(-MAX_LOOKS);
  const looks = await Promise.all(
    looked.map(({ id }) =>
      get(experimentPath(projectId, id, "/results"), {}, { signal }).catch((error) =>
        error.name === "AbortError" ? Promise.reject(error) : null,
      ),
    ),
  );
  return found.reverse().map((each) => ({ ...each, look: looks[looked.indexOf(each)] ?? null }));
}

export default function Experiments() {
  const projectId = useProjectId();
  const list = useApi(
    projectId ? pathOf(projectId, "/experiments") : null,
    {},
    { every: EVERY_MS, read: readWithLooks },
  );
  useWhileTraffic(useCallback(list.reload, [list.reload]));
  const names = useProjectNames();
  const mayWrite = projectId !== null && can("experiments.write", projectId);
  const href = projectId && to("experiments", projectId, "new");
  useShortcut("n", "New experiment", () => mayWrite && navigate(href));
  if (!projectId) return html`<${ChooseTenant} />`;
  const create =
    mayWrite &&
    html`
      <${Button} kind="primary" icon="plus" href=${href}>
        New experiment
      <//>
    `;
  return html`
    <${Page}
      title="Experiments"
      lead=${list.data && html`<${Lead} rows=${list.data} name=${names(projectId)} />`}
      tabs=${html`<${ExperimentTabs} projectId=${projectId} />`}
      actions=${create}
    >
      <${List} projectId=${projectId} list=${list} create=${create} />
    <//>
  `;
}

function Lead({ rows, name }) {
  const running = rows.filter(({ state }) => state === "running").length;
  const waiting = rows.filter(waits).length;
  if (rows.length === 0) return html`${name} compares nothing yet.`;
  return html`
    <b>${plural(running, "experiment")}</b> of ${rows.length} ${running === 1 ? "is" : "are"} running
    ${waiting > 0 && html`; <b>${waiting}</b> ${waiting === 1 ? "waits" : "wait"} for a decision`}
    .
  `;
}

/**
 * Return whether an experiment waits for a decision: its days are over and a deciding metric is proven to differ, or it
 * was stopped without a choice.
 */
function waits({ state, look }) {
  if (state === "stopped" || !isOpen({ state })) return state === "stopped";
  return !!look?.may_decide && look.comparisons.some(isProven);
}

const units = ({ look }) => look?.arms.reduce((sum, arm) => sum + arm.units, 0);

function verdict({ state, look, why, decided_arm: decided }) {
  if (decided) return `${decided} was chosen`;
  if (state === "paused" && why) return `Paused itself: ${why.text}`;
  return look ? percentsSpaced(look.conclusion) : stateInWords(state);
}

function List({ projectId, list, create }) {
  const columns = [
    {
      key: "name",
      title: "Experiment",
      render: ({ name, model }) => html`
        <span>
          ${name}
          ${
            model !== name &&
            html`
              <br />
              <small class="faint">asked for as ${model}</small>
            `
          }
        </span>
      `,
    },
    {
      key: "state",
      title: "State",
      render: ({ state }) => html`
        <${Badge} dot title=${stateInWords(state)}>
          ${state}
        <//>
      `,
    },
    {
      key: "arms",
      title: "Arms",
      sort: false,
      value: ({ arms }) => arms.map(({ name }) => name).join(", "),
      render: ({ arms }) => html`
        <span>
          ${arms.map(
            ({ name, ended }) => html`
              <${Badge} key=${name} tone=${ended ? "" : "info"} title=${ended ? "ended" : undefined}>
                ${name}
              <//>${" "}
            `,
          )}
        </span>
      `,
    },
    {
      key: "units",
      title: "Units",
      format: "count",
      value: units,
      render: (row) => html`<${Num} value=${units(row)} />`,
    },
    { key: "days", title: "Days", format: "count", value: ({ days, state }) => (state === "draft" ? null : days) },
    { key: "verdict", title: "What may be said", value: verdict, sort: false, class: "name-cell text-cell" },
  ];
  return html`
    <${Table}
      label="Experiments"
      columns=${columns}
      rows=${list.data}
      error=${list.error}
      reload=${list.reload}
      what="load the experiments"
      href=${({ id }) => to("experiments", projectId, id)}
      empty=${html`<${None} projectId=${projectId} create=${create} />`}
    />
  `;
}

function None({ projectId, create }) {
  const command = `lorikeet experiment create --project ${projectId} --file experiment.json`;
  return html`
    <${Empty} icon="experiments" title="No experiment yet" action=${create} command=${create ? command : undefined}>
      ${
        create
          ? "Serve two versions of an adapter under one name, each to a part of your users, and see which " +
            "does better, by numbers that hold whenever you look."
          : "Whoever may make experiments here has not done so yet."
      }
    <//>
  `;
}
