// The audit log: the author, the object and the values of each change, and whether the chain of hashes holds. The
// changes of one tenant are shown to its own owners and admins as well, who see neither numbers nor hashes.

import { Badge } from "../../components/badge.js";
import { Button, Code } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Empty, ErrorBox, Notice } from "../../components/feedback.js";
import { Time } from "../../components/numbers.js";
import { Facts, Page } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { get } from "../../lib/api.js";
import { useApi, useList } from "../../lib/data.js";
import { exactly } from "../../lib/format/format.js";
import { html, useState } from "../../lib/html.js";
import { useProjectId, useProjectNames } from "../../lib/projects.js";
import { here, setQuery, to, useQuery } from "../../lib/router.js";
import { can } from "../../lib/session.js";
import { useRange } from "../../lib/format/time.js";
import { shownAs, titleOf } from "../tenants/limits/words.js";
import { Change } from "./change.js";
import { SystemTabs } from "./tabs.js";

/**
 * Return {id, title, address} of an entry's author: a person, a key, or the system. keyName(id): an operator key's
 * name.
 */
function actorOf({ actor }, keyName) {
  if (actor.type === "session")
    return {
      id: actor.session.user.id,
      title: actor.session.user.email ?? actor.session.user.id,
      address: actor.session.ip_address,
    };
  const { id, ip_address: address } = actor[actor.type];
  return { id, title: actor.type === "api_key" ? `key ${keyName(id)}` : `${actor.type} ${id}`, address };
}

const objectOf = (row) => row[row.type];

export default function AuditLog() {
  const { lead, view } = useChanges(useProjectId());
  return html`
    <${Page} title="System" tabs=${html`<${SystemTabs} />`} lead=${lead}>
      <${Verify} />
      ${view}
    <//>
  `;
}

/** Return {lead, view} of the changes of one tenant, or of all if projectId is null. */
export function useChanges(projectId) {
  const range = useRange();
  const [event] = useQuery("event");
  const [actor] = useQuery("actor");
  const [object] = useQuery("object");
  const [chosen] = useQuery("entry");
  const list = useList(
    "/audit_logs",
    {
      event_types: event ? [event] : null,
      ...(actor.includes("@") ? { actor_emails: [actor] } : { actor_ids: actor ? [actor] : null }),
      resource_ids: object ? [object] : null,
      project_ids: projectId ? [projectId] : null,
      "effective_at[gte]": range.start,
      "effective_at[lt]": range.end,
    },
    { limit: 50 },
  );
  const names = useProjectNames();
  const keys = useApi(can("admin_keys.read") ? "/admin_api_keys" : null, { limit: 100 });
  const keyName = (id) => keys.data?.data.find((key) => key.id === id)?.name ?? id;
  const entry = list.items?.find(({ id }) => id === chosen);
  const columns = [
    { key: "effective_at", title: "When", format: "time" },
    { key: "type", title: "What", render: ({ type }) => html`<${Badge}>${type}<//>` },
    { key: "actor", title: "Who", value: (row) => actorOf(row, keyName).title },
    {
      key: "object",
      title: "To what",
      value: (row) => nameOf(objectOf(row)),
      render: (row) => html`<span class="ellipsis">${nameOf(objectOf(row))}</span>`,
    },
    ...(can("audit.read")
      ? [
          { key: "project", title: "Tenant", value: (row) => row.project && names(row.project.id) },
          { key: "sequence", title: "No.", align: "end", value: (row) => row.sequence },
        ]
      : []),
  ];
  const first = list.items?.[0];
  const lead =
    list.items &&
    (first
      ? html`
        <b>
          ${list.items.length}
          ${list.hasMore ? "+" : ""}
        </b>${" "}
        ${list.items.length === 1 ? "change" : "changes"} in${" "}
        ${range.name ? `the ${range.label.toLowerCase()}` : range.label}.
      `
      : `No change in ${range.name ? `the ${range.label.toLowerCase()}` : range.label}.`);
  const view = html`
    <${Filters} event=${event} actor=${actor} object=${object} />
    <${Table}
      label="Audit log"
      filter=${false}
      columns=${columns}
      rows=${list.items}
      href=${({ id }) => here({ entry: id })}
      error=${list.error}
      reload=${list.reload}
      loading=${list.loading}
      hasMore=${list.hasMore}
      more=${list.more}
      empty=${html`<${Empty}
          icon="shield"
          title="No change fits"
          action=${
            (event || actor || object) &&
            html`
              <${Button} onClick=${() => setQuery({ event: null, actor: null, object: null })}>
                Remove the filters
              <//>
            `
          }
        >
          Everything that anybody changes is recorded. A longer time range is at the top.
        <//>`}
    />
    ${entry && html`<${Entry} row=${entry} names=${names} keyName=${keyName} />`}
  `;
  return { lead, view };
}

/** Return the name of a changed object by its recorded fields; its id if it had no name. */
function nameOf({ id, before, after }) {
  const shown = after ?? before ?? {};
  return (
    shown.name ?? shown.email ?? shown.url ?? (shown.unit ? `${titleOf(shown)}: ${shownAs(shown.unit)(shown.max)}` : id)
  );
}

function Filters({ event, actor, object }) {
  const [values, setValues] = useState({ event, actor, object });
  const go = (submitted) => {
    submitted.preventDefault();
    setQuery({ event: values.event.trim(), actor: values.actor.trim(), object: values.object.trim() }, { push: true });
  };
  const field = (name, label, hint) => html`
    <input
      class="input"
      aria-label=${label}
      placeholder=${hint}
      value=${values[name]}
      spellcheck="false"
      onInput=${({ target }) => setValues({ ...values, [name]: target.value })}
    />
  `;
  return html`
    <form class="row audit-filters" role="search" aria-label="Audit log" onSubmit=${go}>
      ${field("event", "Event", "Event: api_key.created")}
      ${field("actor", "Who: e-mail or id", "Who: e-mail or id")}
      ${field("object", "Id of what was changed", "Id of what was changed")}
      <${Button} type="submit" icon="filter">
        Filter
      <//>
    </form>
  `;
}

function Verify() {
  const [state, setState] = useState({});
  const go = async () => {
    setState({ busy: true });
    try {
      setState({ verdict: await get("/audit_logs/verify") });
    } catch (error) {
      setState({ error });
    }
  };
  const { busy, verdict, error } = state;
  const button = html`
    <${Button} small busy=${busy} icon="shield" onClick=${go}>
      ${verdict ? "Verify again" : "Verify the chain"}
    <//>
  `;
  if (error) return html`<${ErrorBox} error=${error} what="verify the log" retry=${go} />`;
  if (!verdict)
    return html`
      <${Notice} title="Each entry holds the hash of the one before it" action=${button}>
        Verifying finds entries that were changed or taken out in the database.
      <//>
    `;
  if (verdict.intact) {
    return html`
      <${Notice} tone="good" title="The chain is intact: ${exactly(verdict.num_rows)} entries" action=${button}>
        Note the last one's hash elsewhere, to see later that nothing before it changed:${" "}
        <${Code} text=${verdict.head_hash} what="hash" />
      <//>
    `;
  }
  const { sequence, reason } = verdict.first_broken;
  return html`
    <${Notice} tone="bad" title="The chain is broken at entry ${sequence}" action=${button}>
      ${reason} Somebody changed the database by hand: compare it with a backup from before.
    <//>
  `;
}

function Entry({ row, names, keyName }) {
  const who = actorOf(row, keyName);
  const { id, before, after } = objectOf(row);
  return html`
    <${Dialog} title=${row.type} side onClose=${() => setQuery({ entry: null })}>
      <div class="stack">
        <${Facts}
          rows=${[
            ["When", html`<${Time} at=${row.effective_at} />`],
            [
              "Who",
              html`<a href=${here({ actor: who.title.includes("@") ? who.title : who.id, entry: null })}>
                ${who.title}
              </a>`,
            ],
            ["From", who.address ? html`<code>${who.address}</code>` : undefined],
            [
              "Tenant",
              row.project ? html`<a href=${to("tenants", row.project.id)}>${names(row.project.id)}</a>` : undefined,
            ],
            ["To what", html`<${Code} text=${id} what="id" />`],
            ["Request id", row.request_id ? html`<${Code} text=${row.request_id} what="request id" />` : undefined],
          ]}
        />
        <p>
          <a href=${here({ object: id, entry: null })}>All that happened to it</a>
        </p>
        <${Change} before=${before} after=${after} />
        ${
          row.hash &&
          html`
            <${Facts}
              rows=${[
                ["Entry", exactly(row.sequence)],
                ["Hash", html`<${Code} text=${row.hash} what="hash" max=${24} />`],
              ]}
            />
          `
        }
      </div>
    <//>
  `;
}
