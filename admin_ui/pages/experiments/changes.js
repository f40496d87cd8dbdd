// The forms for changes of a running experiment: more units, other weights for new ones, the end of an arm, a further
// guardrail.

import { Dialog } from "../../components/dialog.js";
import { Notice } from "../../components/feedback.js";
import { Form, Select, TextField, useForm } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { ApiError, post } from "../../lib/api.js";
import { invalidate, useAll } from "../../lib/data.js";
import { percent } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { pathOf } from "../../lib/projects_api.js";
import { number } from "../../lib/rules/checks.js";
import { experimentPath } from "./paths.js";
import { weightOf } from "./form/values.js";
import { TOO_FEW, tooFew, wrongPart } from "./form/wrong.js";
import { BUILT_IN_METRICS, coverageShown, goalOf, isError, metricTitle, partsInWords, sharesOf } from "./words.js";

const PARTS_OF_A_PERCENT = 100;

/**
 * Change an experiment. The version is that of the experiment as the dialog first showed it, so that the change is
 * refused if somebody else has changed the experiment meanwhile.
 */
async function change(projectId, { id, version }, body) {
  try {
    await post(experimentPath(projectId, id), { version, ...body });
  } catch (error) {
    if (error.param !== "version") throw error;
    throw new ApiError({
      ...error,
      param: null,
      message:
        "Somebody else changed the experiment while this was open. Close it, look at what is there now, " +
        "and change that.",
    });
  } finally {
    invalidate(pathOf(projectId, "/experiments"));
  }
}

/** Return all arms in the form that a change has to give. */
const armsOf = ({ arms }) => arms.map(({ name, weight, ended, target }) => ({ name, weight, ended, target }));

export function SetCoverage({ projectId, experiment, onClose }) {
  const { name, coverage } = experiment;
  const form = useForm(
    { coverage: "100" },
    async (values) => {
      await change(projectId, experiment, { coverage: weightOf(values.coverage) });
      onClose();
      toast(`${name} covers ${coverageShown(weightOf(values.coverage))} of the units`);
    },
    ({ coverage: wanted }) => ({ coverage: wrongPart(wanted, { min: coverage / PARTS_OF_A_PERCENT }) }),
  );
  return html`
    <${Dialog} title="Cover more units" onClose=${onClose}>
      <${Form} form=${form} verb="Cover them" what="cover more units" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("coverage")}
          label="Part of the units that takes part, %"
          hint="${coverageShown(coverage)} now. It never shrinks: a unit that has an arm keeps it."
          inputmode="decimal"
          autocomplete="off"
          autofocus
        />
        <${Notice} title="What will happen">
          Units that took no part are given an arm with their next request. Nobody who has one gets another.
        <//>
      <//>
    <//>
  `;
}

export function SetWeights({ projectId, experiment, onClose }) {
  const { name, arms } = experiment;
  const open = arms.filter(({ ended }) => !ended);
  const shares = sharesOf(arms);
  const shown = Object.fromEntries(
    arms.map((arm, place) => [arm.name, String(Math.round(shares[place] * 10_000) / PARTS_OF_A_PERCENT)]),
  );
  const form = useForm(
    shown,
    async (values) => {
      await change(projectId, experiment, {
        arms: armsOf(experiment).map((arm) => ({ ...arm, weight: arm.ended ? 0 : weightOf(values[arm.name]) })),
      });
      onClose();
      toast(`The weights of ${name} change`);
    },
    (values) => {
      const wrong = Object.fromEntries(open.map((arm) => [arm.name, wrongPart(values[arm.name])]));
      const without = tooFew(open.map(({ name }) => values[name]));
      if (without !== undefined) wrong[open[without].name] ??= TOO_FEW;
      return wrong;
    },
    (param) => arms[param.match(/^arms\[(\d+)\]/)?.[1]]?.name,
  );
  const isRead = open.every((arm) => !wrongPart(form.values[arm.name]));
  const wanted = isRead && sharesOf(open.map((arm) => ({ weight: weightOf(form.values[arm.name]) })));
  return html`
    <${Dialog} title="Change weights" onClose=${onClose}>
      <${Form} form=${form} verb="Change" what="change the weights" onCancel=${onClose}>
        ${open.map(
          (arm, place) => html`
            <${TextField}
              key=${arm.name}
              ...${form.bind(arm.name)}
              label="${arm.name}, part of the new units"
              hint=${wanted ? `gets ${percent(wanted[place])} of the new units` : undefined}
              inputmode="decimal"
              autocomplete="off"
            />
          `,
        )}
        ${wanted && html`<p class="hint">${partsInWords(open.map((arm) => Number(form.values[arm.name])))}</p>`}
        <${Notice} title="What will happen">
          Units that have seen an arm keep it. For about five seconds, while all gateways learn who they are, other
          units get the control; then they are given arms by the new weights. Results compare like with like: units
          from before and after are not mixed.
        <//>
        <p class="hint">
          Latencies are compared most fairly between arms of one size: the smaller one has fewer answers in its cache.
        </p>
      <//>
    <//>
  `;
}

export function SetShadowShare({ projectId, experiment, onClose }) {
  const {
    shadow: { name, target, share },
  } = experiment;
  const form = useForm(
    { share: String(share / PARTS_OF_A_PERCENT) },
    async (values) => {
      await change(projectId, experiment, { shadow: { name, target, share: weightOf(values.share) } });
      onClose();
      toast(`${name} gets copies of ${coverageShown(weightOf(values.share))} of the requests`);
    },
    ({ share: wanted }) => ({ share: wrongPart(wanted) }),
  );
  return html`
    <${Dialog} title="Change the shadow's share" onClose=${onClose}>
      <${Form} form=${form} verb="Change" what="change the share" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("share")}
          label="Part of the requests that are copied, %"
          inputmode="decimal"
          autocomplete="off"
          autofocus
        />
        <${Notice} title="What will happen">
          Within seconds so many requests are copied to ${name}, and each copy is billed. With 0 none is. Nobody sees
          anything of it.
        <//>
      <//>
    <//>
  `;
}

export function EndArm({ projectId, experiment, onClose }) {
  const open = experiment.arms.slice(1).filter(({ ended }) => !ended);
  const form = useForm({ arm: open.at(-1)?.name ?? "" }, async ({ arm: name }) => {
    await change(projectId, experiment, {
      arms: armsOf(experiment).map((arm) => (arm.name === name ? { ...arm, ended: true, weight: 0 } : arm)),
    });
    onClose();
    toast(`${name} has ended`);
  });
  if (open.length < 2) {
    return html`
      <${Dialog} title="End an arm" onClose=${onClose}>
        <${Notice} title="This is the last one beside the control">
          Pause or stop the experiment instead: with one arm alone there is nothing to compare.
        <//>
      <//>
    `;
  }
  return html`
    <${Dialog} title="End an arm" onClose=${onClose}>
      <${Form} form=${form} verb="End the arm" what="end the arm" onCancel=${onClose} danger>
        <${Select} ...${form.bind("arm")} label="Arm" options=${open.map(({ name }) => [name, name])} />
        <${Notice} tone="warn" title="What will happen">
          Its units get ${experiment.arms[0].name} from now on and are no longer analysed. An arm that has ended does
          not come back. What it did so far stays in the results.
        <//>
      <//>
    <//>
  `;
}

export function AddGuardrail({ projectId, experiment, onClose }) {
  const { metrics } = experiment;
  const own = useAll(pathOf(projectId, "/feedback_metrics")).data ?? [];
  const byName = Object.fromEntries(own.map((metric) => [metric.name, metric]));
  const taken = metrics.guardrails.map(({ metric }) => metric);
  const free = [...BUILT_IN_METRICS, ...own.map(({ name }) => [name, `${name}, feedback`])].filter(
    ([name]) => !taken.includes(name),
  );
  const form = useForm(
    { metric: free[0]?.[0] ?? "", margin: "0", action: "pause" },
    async ({ metric, margin, action }) => {
      const added = {
        metric,
        action,
        margin: isError(metric) ? 0 : Number(margin) / 100,
        ...(metric in byName && { goal: goalOf(metric, byName) }),
      };
      await change(projectId, experiment, { metrics: { ...metrics, guardrails: [...metrics.guardrails, added] } });
      onClose();
      toast(`${metricTitle(metric)} is watched`);
    },
    ({ margin }) => ({ margin: margin.trim() ? number(margin, { min: 0, max: 1000 }) : undefined }),
  );
  return html`
    <${Dialog} title="Add a guardrail" onClose=${onClose}>
      <${Form} form=${form} verb="Add" what="add the guardrail" onCancel=${onClose}>
        <${Select} ...${form.bind("metric")} label="Metric" options=${free} />
        ${
          !isError(form.values.metric) &&
          html`
            <${TextField}
              ...${form.bind("margin")}
              label="Tolerated, %"
              hint="How much worse than the control's is still well."
              inputmode="decimal"
              autocomplete="off"
            />
          `
        }
        <${Select}
          ...${form.bind("action")}
          label="When harm is proven"
          options=${[["pause", "pause the experiment"], ["alert", "raise an alert"]]}
        />
        <${Notice} title="What will happen">
          It is judged on all units so far, and acts within seconds where there is harm already. Guardrails cannot be
          taken away again.
        <//>
      <//>
    <//>
  `;
}
