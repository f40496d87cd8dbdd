// Pools whose replicas are servers of another maker that run elsewhere: connected, changed, and the key that they ask
// for.

import { Confirm, Dialog } from "../../components/dialog.js";
import { Notice } from "../../components/feedback.js";
import { Checkbox, Form, Select, TextArea, TextField, useForm } from "../../components/form.js";
import { toast } from "../../components/toast.js";
import { ApiError, del, post } from "../../lib/api.js";
import { invalidate } from "../../lib/data.js";
import { plural } from "../../lib/format/format.js";
import { html } from "../../lib/html.js";
import { navigate, to } from "../../lib/router.js";
import { given, named, webAddress } from "../../lib/rules/checks.js";
import { AccessFields, bodyOfAccess, whoIsChosen, wrongGrants } from "./access.js";
import { pathOf, readSettings, writeSettings, wrongSettings } from "./words.js";

const KINDS = [
  ["openai", "Any server with OpenAI's chat completions, or a provider"],
  ["vllm", "vLLM"],
  ["sglang", "SGLang"],
  ["llamacpp", "llama.cpp's server"],
  ["tgi", "TGI"],
  ["ollama", "Ollama"],
  ["kserve", "Triton, by its generate extension"],
  ["lorikeet-gateway", "The gateway of another Lorikeet"],
];
const OWN_KEYS = [
  ["none", "The key of this pool alone"],
  ["allowed", "A tenant's own key where it brings one, else this pool's"],
  ["required", "A tenant's own key: others are refused"],
];
const BASE_HINT =
  "With the model that the servers run (as in a pool of our own engines), prompts are counted exactly and adapters can answer. Without it, text goes to the servers as it is.";
const SETTINGS_HINT =
  "One NAME=VALUE in a line, such as served_model=big-1, max_in_flight=64 or first_token_seconds=30.";
const FROM_FIELDS = ["allow_private", "own_keys"];

export const kindOf = ({ engine }) => KINDS.find(([key]) => key === engine)?.[1] ?? engine;

/** Whether a pool's servers are of another maker, which no agent starts. */
export const isForeign = ({ engine, is_managed: isManaged }) => Boolean(engine) && engine !== "lorikeet" && !isManaged;

export const whoseKeys = ({ settings }) => OWN_KEYS.find(([key]) => key === (settings.own_keys ?? "none"))[1];

const linesOf = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

function wrongAddresses(text) {
  const lines = linesOf(text);
  return lines.length === 0 ? "Give the address of one server at least." : lines.map(webAddress).find(Boolean);
}

function settingsOf({ settings, is_private: isPrivate, own_keys: ownKeys }) {
  return {
    ...readSettings(settings),
    ...(isPrivate && { allow_private: "true" }),
    ...(ownKeys !== "none" && { own_keys: ownKeys }),
  };
}

const wrong = ({ urls, settings }) => ({ urls: wrongAddresses(urls), settings: wrongSettings(settings) });

function Fields({ form }) {
  return html`
    <${TextArea}
      ...${form.bind("urls")}
      label="Addresses"
      rows=${2}
      hint="One in a line, such as http://10.0.0.7:8000. Requests go to the one with the least to do."
      spellcheck="false"
    />
    <${Checkbox}
      ...${form.bind("is_private")}
      label="They may be at private addresses"
      hint="Such as 127.0.0.1 or 10.0.0.7; never a cloud's metadata service."
    />
    <${TextField}
      ...${form.bind("model")}
      label="Base model"
      optional
      hint=${BASE_HINT}
      autocomplete="off"
      spellcheck="false"
    />
    <${Select} ...${form.bind("own_keys")} label="Requests are sent with" options=${OWN_KEYS} />
    <${TextArea}
      ...${form.bind("settings")}
      label="More settings"
      optional
      rows=${3}
      hint=${SETTINGS_HINT}
      spellcheck="false"
    />
  `;
}

export function ConnectServers({ onClose }) {
  const initial = {
    name: "",
    engine: "openai",
    urls: "",
    is_private: false,
    model: "",
    own_keys: "none",
    settings: "",
    key: "",
    access: "all",
    grants: [],
  };
  const form = useForm(
    initial,
    async (values) => {
      const body = {
        name: values.name.trim(),
        engine: values.engine,
        urls: linesOf(values.urls),
        model: values.model.trim(),
        settings: settingsOf(values),
      };
      const made = await post("/pools", { ...body, ...bodyOfAccess(values) });
      const refused = values.key.trim() && (await keyRefused(made.id, values.key.trim()));
      invalidate("/pools", "/hosts");
      onClose();
      navigate(to("models", made.id));
      toast(
        refused ? `The pool ${made.name} is made, but its key is not set: ${refused}` : `The pool ${made.name} is made`,
        refused ? { tone: "bad" } : {},
      );
    },
    ({ name, access, grants, ...values }) => ({
      name: named(name),
      ...wrong(values),
      grants: wrongGrants({ access, grants }),
    }),
  );
  return html`
    <${Dialog} title="Connect servers" onClose=${onClose} wide>
      <${Form} form=${form} verb="Create pool" what="create the pool" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("name")}
          label="Name"
          hint="Requests ask for the servers by this name. It cannot be changed later."
          maxlength="128"
          autocomplete="off"
          spellcheck="false"
          autofocus
        />
        <${Select} ...${form.bind("engine")} label="Kind of server" options=${KINDS} />
        <${Fields} form=${form} />
        <${TextField}
          ...${form.bind("key")}
          label="Key"
          optional
          type="password"
          hint="If the servers ask for one. Kept encrypted: the last four characters are shown."
          autocomplete="off"
          spellcheck="false"
        />
        <${AccessFields} form=${form} />
        <${Notice} title="What will happen">${consequence(form.values)}<//>
      <//>
    <//>
  `;
}

async function keyRefused(id, key) {
  try {
    await post(pathOf(id, "/key"), { key });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return error.message;
  }
  return "";
}

function consequence({ name, urls, model, ...access }) {
  const number = Math.max(1, linesOf(urls).length);
  const first = model.trim() ? `The hosts prepare ${model.trim()} for its tokenizer. Then ` : "";
  return `${first}${first ? "e" : "E"}ach gateway asks the ${plural(number, "server")} how ${number === 1 ? "it is" : "they are"}, and sends requests to those that answer. ${whoIsChosen(access)} can ask for “${name.trim() || "the name"}”. Nothing is started or stopped there.`;
}

export function ChangeServers({ pool, onClose }) {
  const others = Object.fromEntries(Object.entries(pool.settings).filter(([name]) => !FROM_FIELDS.includes(name)));
  const initial = {
    urls: pool.urls.join("\n"),
    is_private: pool.settings.allow_private === "true",
    model: pool.model,
    own_keys: pool.settings.own_keys ?? "none",
    settings: writeSettings(others),
  };
  const form = useForm(
    initial,
    async (values) => {
      const changed = await post(pathOf(pool.id), {
        urls: linesOf(values.urls),
        model: values.model.trim(),
        settings: settingsOf(values),
      });
      invalidate("/pools", "/projects");
      onClose();
      toast(
        changed.wanted_revision === pool.wanted_revision
          ? "Nothing to change"
          : `${pool.name} changes to revision ${changed.wanted_revision}`,
      );
    },
    wrong,
  );
  return html`
    <${Dialog} title="Change the servers of ${pool.name}" onClose=${onClose} wide>
      <${Form} form=${form} verb="Change" what="change the pool" onCancel=${onClose}>
        <${Fields} form=${form} />
        <${Notice} title="What will happen">
          The pool gets a new revision. Its servers are asked how they are; until one has answered, which takes
          moments, requests may be refused and can be sent again. Requests that run finish where they are.
        <//>
      <//>
    <//>
  `;
}

export function SetServerKey({ pool, onClose }) {
  const form = useForm(
    { key: "" },
    async ({ key }) => {
      await post(pathOf(pool.id, "/key"), { key: key.trim() });
      invalidate("/pools");
      onClose();
      toast(`${pool.name} sends its servers the key`);
    },
    ({ key }) => ({ key: given(key, "Paste the key.") }),
  );
  return html`
    <${Dialog} title="Key for the servers of ${pool.name}" onClose=${onClose}>
      <${Form} form=${form} verb="Save key" what="save the key" onCancel=${onClose}>
        <${TextField}
          ...${form.bind("key")}
          label="Key"
          type="password"
          autocomplete="off"
          spellcheck="false"
          hint="Kept encrypted. Nobody can read it again: the last four characters are shown."
          autofocus
        />
        <${Notice} title="What will happen">
          ${
            pool.key_hint === null
              ? "Within seconds requests are sent with the key"
              : `Within seconds the key takes the place of the one that ends in ${pool.key_hint || "…"}`
          }
          , and gateways ask the servers with it how they are.
        <//>
      <//>
    <//>
  `;
}

export function RemoveServerKey({ pool, onClose }) {
  return html`
    <${Confirm}
      title="Remove the key of ${pool.name}?"
      verb="Remove key"
      onClose=${onClose}
      act=${async () => {
        await del(pathOf(pool.id, "/key"));
        invalidate("/pools");
        toast(`${pool.name} has no key any more`);
      }}
    >
      <p>
        Requests are sent without a key within seconds: servers that ask for one refuse them. Keys that tenants have
        brought stay.
      </p>
    <//>
  `;
}
