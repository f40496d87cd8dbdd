// The plan of an experiment in words, while its form is filled in: what callers get, how many units are needed, and how
// long that takes.

import { Notice } from "../../../components/feedback.js";
import { post } from "../../../lib/api.js";
import { duration, percent } from "../../../lib/format/format.js";
import { html, useEffect, useState } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import {
  coverageShown,
  daysDeclared,
  firstResults,
  hasPast,
  isQuantile,
  metricTitle,
  percentsSpaced,
  shadowInWords,
  sharesOf,
  sourceInWords,
  targetInWords,
} from "../words.js";
import { armOf, partsOf, shadowOf, weightOf, windowSeconds } from "./values.js";
import { wrongPart, wrongValues } from "./wrong.js";

const WAIT_MS = 400;
/** The largest difference of parts that count as equal: three arms have 33.33 %, 33.33 % and 33.34 %. */
const SAME_SHARE = 0.001;

/**
 * Ask the API how large an experiment has to be, going by the project's own traffic; return {size, problem}. problem:
 * why there is no size. body null: nothing is requested. version: another version of the experiment asks again.
 */
export function useSize(projectId, body, version = 0) {
  const [found, setFound] = useState({ size: null, problem: null });
  const asked = body && JSON.stringify(body);
  useEffect(() => {
    if (!asked) return void setFound({ size: null, problem: null });
    const leave = new AbortController();
    const timer = setTimeout(() => {
      post(pathOf(projectId, "/experiments/preview"), JSON.parse(asked), { signal: leave.signal }).then(
        ({ size, why_no_size: problem }) =>
          setFound({ size: size && { ...size, text: percentsSpaced(size.text) }, problem }),
        (error) => error.name !== "AbortError" && setFound({ size: null, problem: error.message }),
      );
    }, WAIT_MS);
    return () => (clearTimeout(timer), leave.abort());
  }, [projectId, asked, version]);
  return found;
}

/**
 * Return the metric by whose past the size is computed: for a quantile its mean, for a metric without a past the cost.
 */
export const sizedBy = (metric) =>
  hasPast(metric) ? (isQuantile(metric) ? metric.split(".")[0] : metric) : "cost_nanos";

/** Return a sentence on the metric that the size is of, if that is another one; else "". */
export function sizeNote(metric) {
  if (!hasPast(metric)) return `The past does not tell how “${metricTitle(metric)}” varies, so this is for the cost. `;
  return isQuantile(metric) ? "For the mean instead of the quantile: " : "";
}

/** Return a sentence that unequal arms need more time; "" for equal ones. shares: the shares of the arms. */
export const unevenNote = (shares) =>
  shares.some((share) => share && Math.abs(share - shares[0]) > SAME_SHARE)
    ? " That is for arms of one size: with unequal parts it takes longer."
    : "";

/**
 * Return the request body for the size by the values of a form; null while a metric or an effect is missing or wrong.
 */
export function questionOf(values) {
  const wrong = wrongValues(values);
  const [metric] = values.primary;
  if (!metric || wrong.effect || wrong.alpha || wrong.coverage || wrong.window || wrong.min_days) return null;
  return {
    metric: sizedBy(metric),
    relative_effect: Number(values.effect) / 100,
    alpha: Number(values.alpha) / 100,
    outcome_window_seconds: windowSeconds(values),
    min_days: Number(values.min_days),
    coverage: weightOf(values.coverage),
    num_arms: values.arms.length,
    num_primary: values.primary.filter(Boolean).length,
  };
}

/** What will happen, in words. models: the result of useArmModels. */
export function Plan({ projectId, values, models }) {
  const wrong = wrongValues(values);
  const question = questionOf(values);
  const { size, problem } = useSize(projectId, question);
  const model = values.model.trim() || values.name.trim() || "the model string";
  const isAlias = models.aliases.includes(model);
  const shares = values.arms.some(({ share }) => wrongPart(share)) ? [] : sharesOf(partsOf(values.arms));
  const arms = values.arms.map(
    ({ name, model }, place) =>
      `${name || "an arm"}${place in shares ? `, ${percent(shares[place])}` : ""}: ${model ? targetInWords(armOf(wrong[`arms.${place}.temperature`] ? { ...values.arms[place], temperature: "" } : values.arms[place]).target) : "not chosen yet"}`,
  );
  const part = weightOf(values.coverage);
  const { shadow } = values;
  return html`
    <${Notice} title="What will happen">
      <span class="plan">
        <span>This saves a draft: nothing changes for callers until you start it.</span>
        <span>
          From the start on, requests for “${model}” get one of the arms (${arms.join("; ")}). Every unit keeps its
          arm; it is ${sourceInWords(values.unit === "metadata." ? `metadata.${values.key || "…"}` : values.unit)}.
          Requests without one get the control.
        </span>
        ${
          isAlias &&
          html`
            <span>
              “${model}” is an alias now: it stands for the experiment from the start on, and for the arm that you
              choose at the end.
            </span>
          `
        }
        ${
          !wrong.coverage &&
          part < 10_000 &&
          html`<span>${coverageShown(10_000 - part)} of the units take no part and get the control.</span>`
        }
        ${
          shadow.model &&
          !wrong["shadow.share"] &&
          html`
            <span class="plan-shadow">
              ${shadowInWords({ ...shadowOf(shadow), name: shadow.name.trim() || "the shadow arm" })}
            </span>
          `
        }
        ${
          size &&
          html`
            <span class="plan-size">
              ${sizeNote(values.primary[0])}
              ${size.text}
              ${unevenNote(shares)}
            </span>
          `
        }
        ${!size && html`<span>${unsized(question, problem)}</span>`}
        ${
          !wrong.window &&
          html`
            <span>
              A unit's outcomes count for ${duration(windowSeconds(values))} from its first request.${" "}
              ${firstResults({ outcome_window_seconds: windowSeconds(values) })}
            </span>
          `
        }
        ${
          !size &&
          !wrong.min_days &&
          Number(values.min_days) > 0 &&
          html`<span>Nothing is to be decided before ${daysDeclared(Number(values.min_days))} are over.</span>`
        }
      </span>
    <//>
  `;
}

function unsized(question, problem) {
  if (!question)
    return "How long it takes is told once the metric that decides is chosen and the times below it are right.";
  return problem ? `How long it takes is not known: ${problem}` : "How long it takes is being looked up.";
}

export const effectHint = (values) =>
  `The smallest change of “${metricTitle(values.primary[0] || "the metric")}” that is worth knowing of; ` +
  "smaller ones take far longer to find.";
