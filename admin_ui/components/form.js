// Forms: fields with label, hint and error, and the state of a form whose errors the API names by field.

import { ApiError } from "../lib/api.js";
import { html, useId, useState } from "../lib/html.js";
import { Button } from "./button.js";
import { ErrorBox } from "./feedback.js";
import { Icon } from "./icons.js";

/** Return the form's field of an API parameter: "destination.path" is the field "path". */
const lastPartOf = (param, values) => param.split(/[.[]/).find((part) => part in values);

/** Return whether a field shows a value or a part of it: "arms.0.name" is a part of "arms". */
const isOf = (field, name) => field === name || !!field?.startsWith(`${name}.`);

/** Open the sections that hide fields with errors, and focus the first such field, once the errors are drawn. */
const toFirstWrong = (form) =>
  setTimeout(() => {
    const wrong = [...(form?.querySelectorAll?.("[aria-invalid=true]") ?? [])];
    for (const field of wrong) field.closest("details")?.setAttribute("open", "");
    wrong[0]?.focus();
  });

/**
 * Return the state of a form: {values, set, fill, errors, error, busy, submit, bind}. fill(values) replaces all values.
 * send(values): an async function; an ApiError with a param is shown at that field, any other error above the buttons.
 * check(values): the errors to show before anything is sent, as {field: sentence}; undefined means that a field is
 * right. bind(name): the props of a field. fieldFor(param, values): the field of an ApiError's param, such as
 * "arms.0.name" of the value "arms"; undefined if no field belongs to it.
 */
export function useForm(initial, send, check = () => ({}), fieldFor = lastPartOf) {
  const [values, setValues] = useState(initial);
  const [problem, setProblem] = useState(null);
  const [tried, setTried] = useState(false);
  const [busy, setBusy] = useState(false);
  const complaints = (values) => Object.fromEntries(Object.entries(check(values)).filter(([, complaint]) => complaint));
  const fieldOf = (problem) => (problem?.param ? fieldFor(problem.param, values) : undefined);
  const set = (name, value) => {
    setValues((was) => ({ ...was, [name]: value }));
    setProblem((was) => (isOf(fieldOf(was), name) ? null : was));
  };
  const fill = (values) => {
    setValues(values);
    setProblem(null);
  };
  const submit = async (event) => {
    event?.preventDefault();
    if (busy) return;
    setProblem(null);
    const element = event?.currentTarget;
    const isWrong = Object.keys(complaints(values)).length > 0;
    setTried(isWrong);
    if (isWrong) return void toFirstWrong(element);
    setBusy(true);
    try {
      await send(values);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error);
      toFirstWrong(element);
    } finally {
      setBusy(false);
    }
  };
  const field = fieldOf(problem);
  const isField = field !== undefined;
  const errors = { ...(isField && { [field]: problem.message }), ...(tried && complaints(values)) };
  const bind = (name) => ({ name, value: values[name], onValue: (value) => set(name, value), error: errors[name] });
  return {
    values,
    set,
    errors,
    error: isField ? null : problem,
    busy,
    submit,
    bind,
    fill,
    reset: () => fill(initial),
  };
}

/** A form with its button. form: the result of useForm. what: completes "Could not …". */
export function Form({ form, verb, what, onCancel, children, danger = false }) {
  return html`
    <form class="form" onSubmit=${form.submit} novalidate>
      ${children}
      <${ErrorBox} error=${form.error} what=${what} />
      <div class="form-actions">
        ${onCancel && html`<${Button} onClick=${onCancel}>Cancel<//>`}
        <${Button} kind=${danger ? "danger" : "primary"} type="submit" busy=${form.busy}>
          ${verb}
        <//>
      </div>
    </form>
  `;
}

/** The label, hint and error around one control. children(props): returns the control with these props. */
export function Field({ label, hint, error, optional = false, children }) {
  const id = useId();
  const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ");
  const props = { id, "aria-invalid": error ? "true" : undefined, "aria-describedby": described || undefined };
  return html`
    <div class="field">
      <label class="label" for=${id}>
        ${label}
        ${
          optional &&
          html`
            ${" "}
            <span class="faint">optional</span>
          `
        }
      </label>
      ${children(props)}
      ${
        hint &&
        html`
          <p class="hint" id="${id}-hint">
            ${hint}
          </p>
        `
      }
      ${
        error &&
        html`
          <p class="field-error" id="${id}-error">
            <${Icon} name="alert" size=${14} />
            ${error}
          </p>
        `
      }
    </div>
  `;
}

/**
 * A text field. type: text, password, email, number, url, date… Other attributes go to the <input>. onValue(text):
 * called at each change.
 */
export function TextField({ label, hint, error, optional, value, onValue, type = "text", ...rest }) {
  return html`
    <${Field} label=${label} hint=${hint} error=${error} optional=${optional}>
      ${(props) => html`
        <input
          class="input"
          type=${type}
          value=${value ?? ""}
          onInput=${(event) => onValue(event.target.value)}
          ...${rest}
          ...${props}
        />
      `}
    <//>
  `;
}

export function TextArea({ label, hint, error, optional, value, onValue, rows = 4, ...rest }) {
  return html`
    <${Field} label=${label} hint=${hint} error=${error} optional=${optional}>
      ${(props) => html`
        <textarea
          class="input"
          rows=${rows}
          value=${value ?? ""}
          onInput=${(event) => onValue(event.target.value)}
          ...${rest}
          ...${props}
        ></textarea>
      `}
    <//>
  `;
}

/** A select box. options: [[value, title], …]. */
export function Select({ label, hint, error, optional, value, onValue, options, ...rest }) {
  return html`
    <${Field} label=${label} hint=${hint} error=${error} optional=${optional}>
      ${(props) => html`
        <span class="select">
          <select
            class="input"
            value=${value}
            onChange=${(event) => onValue(event.target.value)}
            ...${rest}
            ...${props}
          >
            ${options.map(
              ([key, title]) => html`
                <option key=${key} value=${key} selected=${key === value}>
                  ${title}
                </option>
              `,
            )}
          </select>
          <${Icon} name="down" />
        </span>
      `}
    <//>
  `;
}

export function Checkbox({ label, hint, value, onValue, ...rest }) {
  const id = useId();
  return html`
    <div class="check">
      <input
        type="checkbox"
        id=${id}
        checked=${value}
        onChange=${(event) => onValue(event.target.checked)}
        ...${rest}
        aria-describedby=${hint ? `${id}-hint` : undefined}
      />
      <label for=${id}>${label}</label>
      ${
        hint &&
        html`
          <p class="hint" id="${id}-hint">
            ${hint}
          </p>
        `
      }
    </div>
  `;
}
