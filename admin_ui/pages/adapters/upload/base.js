// The field for the base model that a new adapter is for; it is shown where the tenant may use several.

import { Select } from "../../../components/form.js";
import { useAll } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";

const HINT = "The model that the adapter was trained on. It answers under this model's name.";

/** Return the names of the base models that a project may use; [] if there is no choice, or while they are unknown. */
export function useBases(projectId) {
  const { data } = useAll(projectId ? pathOf(projectId, "/models") : null);
  const names = (data ?? []).map(({ name }) => name);
  return names.length > 1 ? names : [];
}

/** Return the part of a request's body that names the base model. bases: the result of useBases. */
export const bodyOfBase = (base, bases) => (bases.length ? { base: bases.includes(base) ? base : bases[0] } : {});

/** The field "base" of a form. */
export function BaseField({ form, bases }) {
  return (
    bases.length > 0 &&
    html`
      <${Select} ...${form.bind("base")} label="Base model" hint=${HINT} options=${bases.map((name) => [name, name])} />
    `
  );
}
