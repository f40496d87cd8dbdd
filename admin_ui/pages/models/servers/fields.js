// The fields of forms about servers of other makers.

import { Checkbox, Select, TextArea, TextField } from "../../../components/form.js";
import { html } from "../../../lib/html.js";
import { webAddress } from "../../../lib/rules/checks.js";
import { readSettings, wrongSettings } from "../words.js";
import { BASE_HINT, OWN_KEYS, SETTINGS_HINT, linesOf } from "./words.js";

export const FROM_FIELDS = ["allow_private", "own_keys"];

function wrongAddresses(text) {
  const lines = linesOf(text);
  return lines.length === 0 ? "Give the address of one server at least." : lines.map(webAddress).find(Boolean);
}

export function settingsOf({ settings, is_private: isPrivate, own_keys: ownKeys }) {
  return {
    ...readSettings(settings),
    ...(isPrivate && { allow_private: "true" }),
    ...(ownKeys !== "none" && { own_keys: ownKeys }),
  };
}

export const wrong = ({ urls, settings }) => ({ urls: wrongAddresses(urls), settings: wrongSettings(settings) });

export function Fields({ form }) {
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
