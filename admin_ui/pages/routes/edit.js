// The editor of a route's document, which is JSON; errors are shown by the path of the node.

import { Dialog } from "../../components/dialog.js";
import { Notice } from "../../components/feedback.js";
import { Form, TextArea, TextField, useForm } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { navigate } from "../../lib/router.js";
import { modelName } from "../../lib/rules/checks.js";

const FIRST = { root: { fallback: { nodes: [{ target: "large" }, { target: "small" }], first_token_ms: 3000 } } };
const HINT =
  "A node has one of the fields target, fallback, weighted, conditional, cheapest, fastest, cascade, hedge and shadow.";

export const written = (document) => JSON.stringify(document, null, 2);

function wrongJson(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value)
      ? undefined
      : 'A policy is an object: {"root": …}.';
  } catch (error) {
    return `This is not JSON: ${error.message}.`;
  }
}

const Policy = ({ form }) => html`
  <${TextArea}
    ...${form.bind("document")}
    label="Policy"
    hint=${HINT}
    rows=${16}
    spellcheck="false"
    class="input code-area"
  />
`;

export function NewRoute({ owner, onClose }) {
  const { base } = owner;
  const form = useForm(
    { name: "", document: written(FIRST) },
    async ({ name, document }) => {
      const made = await post(base, { name, document: JSON.parse(document) });
      invalidate(base);
      onClose();
      navigate(owner.href(made.name));
      toast(`The route ${made.name} answers`);
    },
    ({ name, document }) => ({ name: modelName(name), document: wrongJson(document) }),
  );
  const isForAll = owner.projectId === null;
  return html`
    <${Dialog} title=${isForAll ? "New route for all tenants" : "New route"} onClose=${onClose} wide>
      <${Form} form=${form} verb="Create route" what="create the route" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("name")}
          label="Name"
          hint="What programs give as the model: lower-case letters, digits, dots, dashes and underlines."
          autocomplete="off"
          spellcheck="false"
          autofocus
        />
        <${Policy} form=${form} />
        ${
          isForAll &&
          html`
            <${Notice} title="What will happen">
              Each tenant of the organization can call the route by its name within a second, with its own adapters,
              limits and prices. A tenant that has a name of its own like it keeps that. Targets are base models that
              all tenants may use, and adapters by their names under these.
            <//>
          `
        }
      <//>
    <//>
  `;
}

export function EditRoute({ owner: { base }, route, onClose }) {
  const form = useForm(
    { document: written(route.document) },
    async ({ document }) => {
      const made = await post(`${base}/${encodeURIComponent(route.name)}`, { document: JSON.parse(document) });
      invalidate(base);
      onClose();
      toast(made.version === route.version ? "Nothing has changed" : `Version ${made.version} of ${made.name} answers`);
    },
    ({ document }) => ({ document: wrongJson(document) }),
  );
  return html`
    <${Dialog} title="Change ${route.name}" onClose=${onClose} wide>
      <${Form} form=${form} verb="Save as a new version" what="change the route" onCancel=${onClose}>
        <p>
          Requests that come within a second may still go by version ${route.version}; then all go by the new one.
        </p>
        <${Policy} form=${form} />
      <//>
    <//>
  `;
}
