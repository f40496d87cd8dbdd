// The explorer of usage and cost by tenant, model, adapter or key; every number leads to its requests.

import { Chart } from "../../../components/charts/chart.js";
import { ErrorBox, Skeleton } from "../../../components/feedback.js";
import { Page } from "../../../components/page.js";
import { Choice } from "../../../components/tabs.js";
import { sumOf } from "../../../lib/buckets.js";
import { html } from "../../../lib/html.js";
import { useProjectId } from "../../../lib/projects.js";
import { useQuery } from "../../../lib/router.js";
import { useRange } from "../../../lib/format/time.js";
import { ByTier } from "../by_tier.js";
import { GROUPS, MAX_ROWS, MEASURES, groupOf, measureOf, useExplored, useFilters } from "./data.js";
import { useCostNote } from "../cost_note.js";
import { UsageTabs } from "../tabs.js";
import { Lead, Nothing } from "./lead.js";
import { Marks } from "./marks.js";
import { Rows } from "./rows.js";

export default function Explore() {
  const range = useRange();
  const projectId = useProjectId();
  const filters = useFilters(projectId);
  const groups = GROUPS.filter(([, , name]) => name === "key" || !filters[name]);
  const [wantedGroup, setGroup] = useQuery("by", groups[0][0]);
  const [group] = groups.find(([name]) => name === wantedGroup) ?? groups[0];
  const isByKey = group === "api_key_id" || filters.key !== "";
  const measures = MEASURES.filter(([name]) => !isByKey || name !== "errors");
  const [wantedMeasure, setMeasure] = useQuery("show", "cost");
  const [measure] = measures.find(([name]) => name === wantedMeasure) ?? measures[0];
  const explored = useExplored({ group, measure, filters, range });
  const { sums, error } = explored;
  const costNote = useCostNote(sums);
  const currency = sums?.find((row) => row.currency)?.currency ?? "usd";
  const [, title, unit] = measureOf(measure);
  const isEmpty = sums && sumOf(sums, "num_requests") === 0;
  return html`
    <${Page}
      title="Usage"
      lead=${sums && html`<${Lead} sums=${sums} currency=${currency} range=${range} />`}
      tabs=${html`<${UsageTabs} />`}
    >
      <div class="spread">
        <div class="row">
          <${Choice}
            label="Told apart by"
            value=${group}
            onValue=${setGroup}
            options=${groups.map(([name, word]) => [name, word])}
          />
          <${Marks} filters=${filters} range=${range} />
        </div>
        <${Choice}
          label="Shown"
          value=${measure}
          onValue=${setMeasure}
          options=${measures.map(([name, word]) => [name, word])}
        />
      </div>
      ${
        error &&
        !error.isMissing &&
        html`<${ErrorBox} error=${error} what="load the usage" retry=${explored.top.reload} />`
      }
      ${
        isEmpty
          ? html`<${Nothing} range=${range} filters=${filters} />`
          : html`
            ${
              explored.series
                ? html`
                  <${Chart}
                    title="${title} by ${groupOf(group)[1].toLowerCase()}"
                    kind="bars"
                    times=${explored.times}
                    series=${explored.series}
                    unit=${unit}
                    currency=${currency}
                    height=${240}
                    note=${measure === "cost" ? costNote : undefined}
                  />
                `
                : !error && html`<${Skeleton} height=${300} />`
            }
            ${
              !(error && !explored.rows) &&
              html`
                <${Rows}
                  rows=${explored.rows}
                  group=${group}
                  filters=${filters}
                  range=${range}
                  hasEnds=${!isByKey}
                />
              `
            }
            ${
              explored.rows?.length === MAX_ROWS &&
              html`
                <p class="hint">
                  The first ${MAX_ROWS} by ${title.toLowerCase()}; an export has all.
                </p>
              `
            }
            <${ByTier} filters=${filters} range=${range} currency=${currency} />
          `
      }
    <//>
  `;
}
