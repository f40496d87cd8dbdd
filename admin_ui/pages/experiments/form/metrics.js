// The fields of the metrics in the form of an experiment: metrics that decide, guardrails, and metrics that are only
// watched.

import { Button } from "../../../components/button.js";
import { Choices } from "../../../components/choices.js";
import { Select, TextField } from "../../../components/form.js";
import { Section } from "../../../components/page.js";
import { html } from "../../../lib/html.js";
import { BUILT_IN_METRICS, isError, isQuantile, metricTitle } from "../words.js";

const GUARDRAILS_HINT =
  "Metrics that must not become worse, whatever the others say. " + "Harm that is proven acts by itself, at any hour.";

const ACTIONS = [
  ["pause", "pauses the experiment"],
  ["alert", "raises an alert"],
];
const MAX_PRIMARY = 5;

/** The fields of metrics. own: [{name, …}], the project's own metrics. */
export function Metrics({ form, own }) {
  const { primary, guardrails, secondary } = form.values;
  const all = [...own.map(({ name }) => [name, `${name}, feedback`]), ...BUILT_IN_METRICS];
  const setPrimary = (place, metric) =>
    form.set(
      "primary",
      primary.map((each, other) => (other === place ? metric : each)),
    );
  const setGuardrail = (place, changes) =>
    form.set(
      "guardrails",
      guardrails.map((each, other) => (other === place ? { ...each, ...changes } : each)),
    );
  const free = (taken, kept) => all.filter(([name]) => name === kept || !taken.includes(name));
  const unguarded = free(guardrails.map(({ metric }) => metric));
  const watched = all.filter(
    ([name]) => !isQuantile(name) && !primary.includes(name) && !guardrails.some(({ metric }) => metric === name),
  );
  return html`
    <${Section}
      title="What decides"
      hint="Declared before the start and the same to the end. With several, each has to clear a higher bar."
    >
      <div class="field-rows">
        ${primary.map(
          (metric, place) => html`
            <div key=${place} class="primary-row">
              <${Select}
                label=${place === 0 ? "Metric that decides" : `Metric ${place + 1} that decides`}
                value=${metric}
                onValue=${(value) => setPrimary(place, value)}
                error=${form.errors[`primary.${place}`]}
                options=${[["", "Choose"], ...free(primary, metric)]}
              />
              ${
                place > 0 &&
                html`
                  <${Button}
                    kind="quiet"
                    icon="trash"
                    label="Remove ${metricTitle(metric) || "this metric"}"
                    onClick=${() =>
                      form.set(
                        "primary",
                        primary.filter((_, other) => other !== place),
                      )}
                  />
                `
              }
            </div>
          `,
        )}
        ${
          primary.length < MAX_PRIMARY &&
          primary.at(-1) &&
          html`
            <div>
              <${Button} small icon="plus" onClick=${() => form.set("primary", [...primary, ""])}>
                Another one
              <//>
            </div>
          `
        }
      </div>
    <//>
    <${Section}
      title="Guardrails"
      hint=${GUARDRAILS_HINT}
      actions=${
        unguarded.length > 0 &&
        html`
          <${Button}
            small
            icon="plus"
            onClick=${() =>
              form.set("guardrails", [...guardrails, { metric: unguarded[0][0], action: "alert", margin: "0" }])}
          >
            Add a guardrail
          <//>
        `
      }
    >
      <div class="field-rows">
        ${guardrails.map(
          (guardrail, place) => html`
            <div key=${place} class="guardrail-row">
              <${Select}
                label="Metric"
                value=${guardrail.metric}
                error=${form.errors[`guardrails.${place}.metric`]}
                options=${free(
                  guardrails.map(({ metric }) => metric),
                  guardrail.metric,
                )}
                onValue=${(metric) => setGuardrail(place, { metric })}
              />
              <${TextField}
                label="Tolerated, %"
                error=${form.errors[`guardrails.${place}.margin`]}
                disabled=${isError(guardrail.metric)}
                value=${isError(guardrail.metric) ? "" : guardrail.margin}
                onValue=${(margin) => setGuardrail(place, { margin })}
                placeholder="none"
                inputmode="decimal"
                autocomplete="off"
              />
              <${Select}
                label="Harm"
                value=${guardrail.action}
                options=${ACTIONS}
                onValue=${(action) => setGuardrail(place, { action })}
              />
              <${Button}
                kind="quiet"
                icon="trash"
                label="Remove ${metricTitle(guardrail.metric)}"
                onClick=${() =>
                  form.set(
                    "guardrails",
                    guardrails.filter((_, other) => other !== place),
                  )}
              />
            </div>
          `,
        )}
        ${guardrails.length === 0 && html`<p class="hint">None: nothing stops the experiment but you.</p>`}
        ${
          form.errors.guardrails &&
          html`
            <p class="field-error" role="alert">
              ${form.errors.guardrails}
            </p>
          `
        }
      </div>
    <//>
    <details open=${form.errors.secondary !== undefined}>
      <summary>Metrics that are only watched${secondary.length ? `: ${secondary.length}` : ""}</summary>
      <div class="choices-scroll">
        <${Choices} ...${form.bind("secondary")} label="Watched metrics" options=${watched} />
      </div>
    </details>
  `;
}
