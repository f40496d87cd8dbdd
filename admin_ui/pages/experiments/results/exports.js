// The downloads of an experiment's data: rows of units, and the sums that every published number comes from.

import { Button } from "../../../components/button.js";
import { ErrorBox } from "../../../components/feedback.js";
import { Section } from "../../../components/page.js";
import { download } from "../../../lib/api.js";
import { html, useState } from "../../../lib/html.js";
import { save } from "../../../lib/save.js";
import { experimentPath } from "../paths.js";

const KINDS = [
  ["exposures", "Exposures"],
  ["outcomes", "Outcomes"],
  ["feedback", "Feedback"],
  ["analysis", "Analysis"],
];
const HINT =
  "Exposures, outcomes and feedback are rows as CSV; the analysis has the sums, as JSON, that each " +
  "number here can be computed from again. All are ZIP files, and name units by their digests alone.";

export function Exports({ projectId, experiment: { id } }) {
  const [asked, ask] = useState({ busy: null, error: null });
  const fetched = async (kind) => {
    ask({ busy: kind, error: null });
    try {
      const { name, blob } = await download(experimentPath(projectId, id, "/exports"), { query: { kind } });
      save(blob, name);
      ask({ busy: null, error: null });
    } catch (error) {
      ask({ busy: null, error });
    }
  };
  return html`
    <${Section} title="Download" hint=${HINT}>
      <div class="row downloads">
        ${KINDS.map(
          ([kind, title]) => html`
            <${Button}
              key=${kind}
              small
              icon="download"
              busy=${asked.busy === kind}
              disabled=${asked.busy !== null}
              onClick=${() => fetched(kind)}
            >
              ${title}
            <//>
          `,
        )}
      </div>
      <${ErrorBox} error=${asked.error} what="download it" />
    <//>
  `;
}
