// The dialogs that confirm an action on a pool or a replica: stop, replace, roll back, remove.

import { Confirm } from "../../components/dialog.js";
import { toast } from "../../components/toast.js";
import { del, post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { html } from "../../lib/html.js";
import { navigate } from "../../lib/router.js";
import { pathOf, replicas } from "./words.js";

export function DrainPool({ pool, onClose }) {
  return html`
    <${Confirm}
      title="Drain ${pool.name}?"
      verb="Drain"
      onClose=${onClose}
      act=${async () => {
        await post(pathOf(pool.id, "/drain"));
        invalidate("/pools", "/hosts");
        toast(`${pool.name} drains`);
      }}
    >
      <p>
        ${
          pool.num_ready
            ? `${replicas(pool.num_ready)} ${pool.num_ready === 1 ? "takes no new request, ends those that run, and stops" : "take no new request, end those that run, and stop"}.`
            : "No replica is started any more."
        }
      </p>
      <p>
        Nobody answers requests for <code>${pool.name}</code>
        ${
          pool.num_adapters ? ` and its ${pool.num_adapters === 1 ? "adapter" : `${pool.num_adapters} adapters`}` : ""
        }${" "}
        until it is scaled up again.
      </p>
    <//>
  `;
}

export function CancelChange({ pool, onClose }) {
  return html`
    <${Confirm}
      title="Give up revision ${pool.wanted_revision}?"
      verb="Give it up"
      onClose=${onClose}
      act=${async () => {
        await post(pathOf(pool.id, "/cancel"));
        invalidate("/pools", "/hosts");
        toast(`${pool.name} stays at revision ${pool.revision}`);
      }}
    >
      <p>
        Revision ${pool.revision} goes on as it is. Replicas of revision ${pool.wanted_revision} stop, and no
        request notices.
      </p>
    <//>
  `;
}

export function RemovePool({ pool, onClose }) {
  return html`
    <${Confirm}
      title="Remove ${pool.name}?"
      verb="Remove pool"
      name=${pool.name}
      onClose=${onClose}
      act=${async () => {
        await del(pathOf(pool.id));
        invalidate("/pools");
        navigate("/admin/models");
        toast(`The pool ${pool.name} is removed`);
      }}
    >
      <p>
        The name is free afterwards, and requests for it are refused. Usage that was recorded stays, and so do
        the files of the model on the hosts.
      </p>
      ${
        pool.num_adapters > 0 &&
        html`
          <p>
            ${pool.num_adapters === 1 ? "One adapter belongs" : `${pool.num_adapters} adapters belong`} to its
            base: remove ${pool.num_adapters === 1 ? "it" : "them"} first, or have another pool serve the same
            base.
          </p>
        `
      }
    <//>
  `;
}

export function DrainReplica({ replica, pool, onClose }) {
  const left = Math.max(0, pool.num_replicas - (replica.host_id === null ? 0 : 1));
  return html`
    <${Confirm}
      title="Drain this replica?"
      verb="Drain"
      onClose=${onClose}
      act=${async () => {
        await post(`/replicas/${encodeURIComponent(replica.id)}/drain`);
        invalidate("/pools", "/hosts");
        toast("The replica drains");
      }}
    >
      <p>
        The replica on ${placeOf(replica)} takes no new request, ends those that run, and stops. ${pool.name} is to
        run ${replicas(left)} from then on
        ${left === 0 && pool.num_ready <= 1 ? ", and nobody answers for it" : ""}.
      </p>
    <//>
  `;
}

export function RestartReplica({ replica, pool, onClose }) {
  return html`
    <${Confirm}
      title="Replace this replica?"
      verb="Replace"
      danger=${false}
      onClose=${onClose}
      act=${async () => {
        await post(`/replicas/${encodeURIComponent(replica.id)}/restart`);
        invalidate("/pools", "/hosts");
        toast("The replica is going to be replaced");
      }}
    >
      <p>
        Another replica of ${pool.name} starts, and the one on ${placeOf(replica)} drains once the other is ready.
        Where there is no room for two, this one stops first
        ${pool.num_ready <= 1 ? ", and requests are refused until the other is ready" : ""}.
      </p>
    <//>
  `;
}

const placeOf = ({ host, host_id: id, address }) => host ?? id ?? address ?? "a host";
