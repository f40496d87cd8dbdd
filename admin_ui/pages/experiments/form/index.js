// The form of a new experiment, or of a draft: what is compared, by which metrics it is decided, and what will happen,
// in words.

import { Empty, Loaded } from "../../../components/feedback.js";
import { Button } from "../../../components/button.js";
import { Page } from "../../../components/page.js";
import { useAll, useApi } from "../../../lib/data.js";
import { html } from "../../../lib/html.js";
import { pathOf } from "../../../lib/projects_api.js";
import { to } from "../../../lib/router.js";
import { can } from "../../../lib/session.js";
import { experimentPath } from "../paths.js";
import { useArmModels } from "./models.js";
import { Fields } from "./fields.js";

export default function EditExperiment({ params: { project, experiment: id } }) {
  const draft = useApi(id ? experimentPath(project, id) : null);
  const models = useArmModels(project, draft.data?.model);
  const own = useAll(pathOf(project, "/feedback_metrics"));
  const crumbs = [
    ["Experiments", `/admin/experiments?project=${encodeURIComponent(project)}`],
    ...(draft.data ? [[draft.data.name, to("experiments", project, id)]] : []),
  ];
  const title = id ? "Change the draft" : "New experiment";
  if (!can("experiments.write", project) || (draft.data && draft.data.state !== "draft")) {
    const why = draft.data
      ? "It has started: its page has what may still change."
      : "Your role makes no experiments here.";
    return html`
      <${Page} title=${title} crumbs=${crumbs}>
        <${Empty}
          icon="experiments"
          title="Nothing to fill in"
          action=${html`<${Button} href=${crumbs.at(-1)[1]}>Back<//>`}
        >
          ${why}
        <//>
      <//>
    `;
  }
  const isThere = !models.isLoading && own.data !== undefined && (!id || draft.data !== undefined);
  return html`
    <${Page}
      title=${title}
      crumbs=${crumbs}
      lead="Compare what you serve with what you could serve, on your own traffic."
    >
      ${
        isThere
          ? html`
            <${Fields}
              projectId=${project}
              draft=${draft.data}
              models=${models}
              own=${own.data}
              above=${crumbs.at(-1)[1]}
            />
          `
          : html`
            <${Loaded} from=${draft.error ? draft : own} what="load the form">
              ${() => null}
            <//>
          `
      }
    <//>
  `;
}
