// The fields of a form for the projects that may use a pool, and the part of a request's body that they stand for.

import { Choices } from "../../components/choices.js";
import { Dialog } from "../../components/dialog.js";
import { Form, Select, useForm } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { useProjects } from "../../lib/projects.js";
import { useSession } from "../../lib/session.js";
import { pathOf } from "./words.js";

const ACCESS = [
  ["all", "All tenants of the installation"],
  ["listed", "Only those chosen below"],
];
const WHOLE_HINT = "Also those that are made later.";

/**
 * Return a grant as the value of a checkbox: "organization/project", or "organization/" for all of the organization.
 */
const keyOf = ({ organization_id: organization, project_id: project }) => `${organization}/${project ?? ""}`;
const grantOf = (key) => {
  const [organization, project] = key.split("/");
  return { organization_id: organization, ...(project && { project_id: project }) };
};

export const bodyOfAccess = ({ access, grants }) => ({ access, grants: access === "all" ? [] : grants.map(grantOf) });

export const wrongGrants = ({ access, grants }) =>
  access === "listed" && grants.length === 0 ? "Choose at least one tenant." : undefined;

/** Return how many tenants the grants are for, in words. */
export function whoIsChosen({ access, grants }) {
  if (access === "all") return "all tenants";
  if (grants.some((key) => key.endsWith("/"))) return "all tenants of an organization";
  return grants.length === 1 ? "one tenant" : `${grants.length} tenants`;
}

/**
 * The fields "access" and "grants" of a form. given: the pool's present grants, which may be of other organizations.
 */
export function AccessFields({ form, given = [] }) {
  const { id: own, name } = useSession().who.organization;
  const projects = (useProjects() ?? []).filter(({ status }) => status !== "archived");
  const options = [
    [keyOf({ organization_id: own }), `All tenants of ${name}`, WHOLE_HINT],
    ...projects.map(({ id, name }) => [keyOf({ organization_id: own, project_id: id }), name]),
  ];
  const known = new Set(options.map(([key]) => key));
  const others = given
    .filter((grant) => !known.has(keyOf(grant)))
    .map((grant) => [keyOf(grant), grant.project_id ?? `All tenants of ${grant.organization_id}`]);
  return html`
    <${Select} ...${form.bind("access")} label="Who may use it" options=${ACCESS} />
    ${
      form.values.access === "listed" &&
      html`
        <div class="choices-scroll">
          <${Choices} ...${form.bind("grants")} label="Tenants" options=${[...options, ...others]} />
        </div>
      `
    }
  `;
}

export function SetAccess({ pool, onClose }) {
  const form = useForm(
    { access: pool.access, grants: pool.grants.map(keyOf) },
    async (values) => {
      await post(pathOf(pool.id), bodyOfAccess(values));
      invalidate("/pools", "/projects");
      onClose();
      toast(`Who may use ${pool.name} is set`);
    },
    (values) => ({ grants: wrongGrants(values) }),
  );
  return html`
    <${Dialog} title="Who may use ${pool.name}?" onClose=${onClose}>
      <${Form} form=${form} verb="Save" what="change who may use the pool" onCancel=${onClose}>
        <${AccessFields} form=${form} given=${pool.grants} />
        <p class="hint">
          For tenants that are left out, the model no longer exists: their requests for it and for its adapters are
          refused within a second. Requests that run finish.
        </p>
      <//>
    <//>
  `;
}
