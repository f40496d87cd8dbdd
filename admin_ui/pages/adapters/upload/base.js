// The base model that a new adapter is for: asked where the tenant may use several.

import { Select } from "../../../components/form.js";
import { useAll } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";

const HINT = "The model that the adapter was trained on. It answers under this model's name.";

/** Names of the base models that a project may use; [] where it needs no choice, or nobody knows yet. */
export function useBases(projectId) {
  const { data } = useAll(projectId ? pathOf(projectId, "/models") : null);
  const names = (data ?? []).map(({ name }) => name);
  return names.length > 1 ? names : [];
}

/** The part of a request's body that says the base. bases: of useBases. */
export const bodyOfBase = (base, bases) => (bases.length ? { base: bases.includes(base) ? base : bases[0] } : {});

/** Field "base" of a form. */
export function BaseField({ form, bases }) {
  return (
    bases.length > 0 &&
    html`
      <${Select} ...${form.bind("base")} label="Base model" hint=${HINT} options=${bases.map((name) => [name, name])} />
    `
  );
}
