// The filters of the list of requests: status and model to choose, others as marks that can be removed.

import { Button } from "../../components/button.js";
import { Icon } from "../../components/icons.js";
import { useApi } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { setQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";

const STATUSES = [
  ["", "Any result"],
  ["completed", "Completed"],
  ["cancelled", "Cancelled"],
  ["refused", "Refused"],
  ["error", "Failed"],
];

/** The filters of the list. models: the known models, to choose from. */
export function Filters({ filters, models }) {
  const choices = [...new Set([...(filters.model ? [filters.model] : []), ...models])].sort();
  const find = (event) => {
    event.preventDefault();
    setQuery({ id: new FormData(event.target).get("id").trim() });
  };
  const keyId = filters.key;
  return html`
    <${Choose} label="Result" value=${filters.status} options=${STATUSES} onValue=${(status) => setQuery({ status })} />
    <${Choose}
      label="Model"
      value=${filters.model}
      options=${[["", "Any model"], ...choices.map((model) => [model, model])]}
      onValue=${(model) => setQuery({ model })}
    />
    <form class="filter" onSubmit=${find} role="search">
      <${Icon} name="search" />
      <input
        name="id"
        type="search"
        key=${filters.id}
        defaultValue=${filters.id}
        placeholder="Request id"
        aria-label="Request id"
        spellcheck="false"
      />
    </form>
    ${
      keyId &&
      html`
        <${Mark} name="key">
          <${KeyName} id=${keyId} projectId=${filters.project} />
        <//>
      `
    }
    ${filters.adapter && html`<${Mark} name="adapter">Adapter ${filters.adapter}<//>`}
    ${filters.id && html`<${Mark} name="id">Request ${filters.id}<//>`}
  `;
}

function Choose({ label, value, options, onValue }) {
  return html`
    <span class="select small-select">
      <select class="input" aria-label=${label} value=${value} onChange=${(event) => onValue(event.target.value)}>
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
  `;
}

/** An active filter, with a button that removes it. */
function Mark({ name, children }) {
  return html`
    <span class="mark">
      ${children}
      <${Button}
        kind="quiet"
        small
        icon="close"
        label="No longer by ${name}"
        onClick=${() => setQuery({ [name]: null })}
      />
    </span>
  `;
}

/** A key by its name, if the project is known and its keys may be read; else by its id. */
export function KeyName({ id, projectId }) {
  const isKnown = projectId && can("keys.read", projectId);
  const { data } = useApi(
    isKnown ? `/projects/${encodeURIComponent(projectId)}/api_keys/${encodeURIComponent(id)}` : null,
  );
  return html`<span title=${id}>Key ${data?.name ?? id}</span>`;
}
