// The dialogs that change one host: drain it, use it again, label it, remove it.

import { Confirm, Dialog } from "../../../components/dialog.js";
import { Notice } from "../../../components/feedback.js";
import { Checkbox, Form, TextArea, useForm } from "../../../components/form.js";
import { toast } from "../../../components/toast.js";
import { del, post } from "../../../lib/api.js";
import { invalidate } from "../../../lib/data.js";
import { html, useState } from "../../../lib/html.js";
import { navigate } from "../../../lib/router.js";
import { readLabels, replicas, writeLabels, wrongLabels } from "../words.js";
import { pathOf } from "./words.js";

export function DrainHost({ host, onClose }) {
  return html`
    <${Confirm}
      title="Drain ${host.name}?"
      verb="Drain"
      onClose=${onClose}
      act=${async () => {
        await post(pathOf(host.id), { is_drained: true });
        invalidate("/hosts", "/pools", "/replicas");
        toast(`${host.name} drains`);
      }}
    >
      <p>
        No replica starts there any more.${" "}
        ${
          host.num_replicas
            ? `${replicas(host.num_replicas)} ${host.num_replicas === 1 ? "goes" : "go"}, each once ` +
              "another one is ready on another host; one for which no other host has room stays and serves."
            : "None runs there."
        }
      </p>
    <//>
  `;
}

export function UseAgain({ host, onClose }) {
  return html`
    <${Confirm}
      title="Use ${host.name} again?"
      verb="Use again"
      danger=${false}
      onClose=${onClose}
      act=${async () => {
        await post(pathOf(host.id), { is_drained: false });
        invalidate("/hosts", "/pools", "/replicas");
        toast(`${host.name} is used again`);
      }}
    >
      <p>Replicas start there again where it has most memory free. Those that run elsewhere stay.</p>
    <//>
  `;
}

export function LabelHost({ host, onClose }) {
  const form = useForm(
    { labels: writeLabels(host.labels) },
    async ({ labels }) => {
      await post(pathOf(host.id), { labels: readLabels(labels) });
      invalidate("/hosts", "/pools");
      onClose();
      toast(`The labels of ${host.name} are set`);
    },
    ({ labels }) => ({ labels: wrongLabels(labels) }),
  );
  return html`
    <${Dialog} title="Labels of ${host.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Save" what="set the labels" onCancel=${onClose}>
        <${TextArea}
          ...${form.bind("labels")}
          label="Labels"
          optional
          rows=${5}
          hint="One NAME=VALUE in each line, such as zone=west."
          spellcheck="false"
          autofocus
        />
        <${Notice} title="What will happen">
          Pools that ask for labels start replicas where these fit. Replicas of pools that the host no longer
          fits go once others are ready.
        <//>
      <//>
    <//>
  `;
}

export function RemoveHost({ host, onClose }) {
  const [force, setForce] = useState(false);
  const holds = host.num_replicas > 0;
  return html`
    <${Confirm}
      title="Remove ${host.name}?"
      verb="Remove host"
      name=${host.name}
      isReady=${!holds || force}
      onClose=${onClose}
      act=${async () => {
        await del(`${pathOf(host.id)}${force ? "?force=true" : ""}`);
        invalidate("/hosts", "/pools");
        navigate("/admin/models");
        toast(`The host ${host.name} is removed`);
      }}
    >
      <p>
        Its keys open no engine any more, and its agent ends its engines and itself. Bring the journals of its
        gateways home first: they may hold usage that is nowhere else.
      </p>
      ${
        holds &&
        html`
          <${Checkbox}
            value=${force}
            onValue=${setForce}
            label="Remove it with ${replicas(host.num_replicas)}"
            hint="They count as lost, whether or not they still run. Drain the host first where it still answers."
          />
        `
      }
    <//>
  `;
}
