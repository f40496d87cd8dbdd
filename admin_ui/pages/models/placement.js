// The hosts on which replicas of a pool may start: the labels that the pool asks of them, and whether each has room for
// one more replica.

import { Badge } from "../../components/badge.js";
import { Dialog } from "../../components/dialog.js";
import { Empty, Notice } from "../../components/feedback.js";
import { Form, TextArea, useForm } from "../../components/form.js";
import { Section } from "../../components/page.js";
import { Table } from "../../components/table.js";
import { toast } from "../../components/toast.js";
import { post } from "../../lib/api.js";
import { invalidate, useAll } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { to } from "../../lib/router.js";
import {
  hasLabels,
  pathOf,
  placementOf,
  readExcluded,
  readLabels,
  writeExcluded,
  writeLabels,
  wrongLabels,
} from "./words.js";

export function Placement({ pool }) {
  const columns = [
    { key: "host", title: "Host" },
    {
      key: "fits",
      title: "One more replica",
      value: ({ fits }) => (fits ? "fits" : "does not fit"),
      render: ({ fits }) => html`
        <${Badge} dot tone=${fits ? "good" : "warn"}>
          ${fits ? "fits" : "does not fit"}
        <//>
      `,
    },
    {
      key: "runs",
      title: "Replicas here",
      align: "end",
      value: ({ host_id: id }) => pool.replicas.filter(({ host_id: at }) => at === id).length,
    },
    { key: "why", title: "Why" },
  ];
  return html`
    <${Section}
      title="Where replicas start"
      hint="On ${placementOf(pool) === "any host" ? "any host" : `hosts with ${placementOf(pool)}`}, where most memory is free."
    >
      <${Table}
        name="placement"
        label="Where replicas start"
        columns=${columns}
        rows=${pool.hosts}
        rowKey=${({ host_id: id }) => id}
        href=${({ host_id: id }) => to("hosts", id)}
        filter=${false}
        empty=${html`<${Empty} icon="system" title="Nobody knows yet">
            What a replica needs is known once its model is prepared.
          <//>`}
      />
    <//>
  `;
}

export function PlacePool({ pool, onClose }) {
  const hosts = useAll("/hosts");
  const form = useForm(
    { placement: writeLabels(pool.placement), exclusion: writeExcluded(pool.exclusion) },
    async ({ placement, exclusion }) => {
      await post(pathOf(pool.id), { placement: readLabels(placement), exclusion: readExcluded(exclusion) });
      invalidate("/pools", "/hosts");
      onClose();
      toast(`The hosts of ${pool.name} are chosen`);
    },
    ({ placement, exclusion }) => ({ placement: wrongLabels(placement), exclusion: wrongLabels(exclusion) }),
  );
  return html`
    <${Dialog} title="Choose the hosts of ${pool.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Choose" what="choose the hosts" onCancel=${onClose}>
        <${TextArea}
          ...${form.bind("placement")}
          label="Labels that a host must have"
          optional
          rows=${3}
          hint="One NAME=VALUE in each line, such as zone=west. A host must have all of them."
          spellcheck="false"
          autofocus
        />
        <${TextArea}
          ...${form.bind("exclusion")}
          label="Labels that a host must not have"
          optional
          rows=${3}
          hint="One in each line. A host that has any of them gets no replica."
          spellcheck="false"
        />
        <${Notice} title="What will happen">${chosen(hosts.data, form.values)}<//>
      <//>
    <//>
  `;
}

function chosen(hosts, { placement, exclusion }) {
  if (!hosts || wrongLabels(placement) || wrongLabels(exclusion))
    return "Replicas start on hosts with such labels alone.";
  const [wanted, excluded] = [readLabels(placement), readExcluded(exclusion)];
  const fitting = hosts.filter((host) => hasLabels(host, wanted, excluded));
  if (fitting.length === 0)
    return "No host has such labels: no replica starts anywhere, and those that run stay and serve.";
  return (
    `Replicas start on ${plural(fitting.length, "host")} of ${hosts.length}: ` +
    `${fitting.map(({ name }) => name).join(", ")}. Those on other hosts go once others are ready in their ` +
    "place."
  );
}
