// Who may use a pool: fields for forms, and the part of a request's body that they stand for.

import { Choices } from "../../components/choices.js";
import { Dialog } from "../../components/dialog.js";
import { Form, Select, useForm } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { useProjects } from "../../lib/projects.js";
import { pathOf } from "./words.js";

const ACCESS = [["all", "All tenants of the installation"], ["listed", "Only the tenants chosen below"]];

/** kept: grants that the form does not show, of whole organizations. */
export const bodyOfAccess = ({ access, grants }, kept = []) => ({ access, grants: access === "all" ? [] : [...kept, ...grants.map((id) => ({ project_id: id }))] });

export const wrongGrants = ({ access, grants }, kept = []) => (access === "listed" && grants.length + kept.length === 0 ? "Choose at least one tenant." : undefined);

/** Fields "access" and "grants" of a form. */
export function AccessFields({ form }) {
  const projects = (useProjects() ?? []).filter(({ status }) => status !== "archived");
  return html`<${Select} ...${form.bind("access")} label="Who may use it" options=${ACCESS} />
    ${form.values.access === "listed" && html`<div class="choices-scroll"><${Choices} ...${form.bind("grants")} label="Tenants" options=${projects.map(({ id, name }) => [id, name])} /></div>`}`;
}

export function SetAccess({ pool, onClose }) {
  const kept = pool.grants.filter(({ project_id: id }) => id === null);
  const grants = pool.grants.map(({ project_id: id }) => id).filter((id) => id !== null);
  const form = useForm({ access: pool.access, grants }, async (values) => {
    await post(pathOf(pool.id), bodyOfAccess(values, kept));
    invalidate("/pools", "/projects");
    onClose();
    toast(`Who may use ${pool.name} is set`);
  }, (values) => ({ grants: wrongGrants(values, kept) }));
  return html`<${Dialog} title=${`Who may use ${pool.name}?`} onClose=${onClose}>
    <${Form} form=${form} verb="Save" what="change who may use the pool" onCancel=${onClose}>
      <${AccessFields} form=${form} />
      <p class="hint">For tenants that are left out, the model no longer exists: their requests for it and for its adapters are refused within a second. Requests that run finish.</p>
    <//>
  <//>`;
}
