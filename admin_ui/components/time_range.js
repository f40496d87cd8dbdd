// The control for the time range of a view, which is in the URL: a named range, or its start and end.

import { html, useState } from "../lib/html.js";
import { MAX_RANGE_DAYS, RANGES, isTooLong, setRange, useRange } from "../lib/format/time.js";
import { Button } from "./button.js";
import { Dialog } from "./dialog.js";
import { TextField } from "./form.js";
import { Icon } from "./icons.js";
import { Menu } from "./menu.js";

export function TimeRange() {
  const range = useRange();
  const [choosing, choose] = useState(false);
  const items = [
    ...Object.entries(RANGES).map(([name, { label }]) => ({
      title: label,
      checked: name === range.name,
      onClick: () => setRange({ name }),
    })),
    null,
    { title: "From … to …", checked: range.name === "", onClick: () => choose(true) },
  ];
  return html`
    <${Menu}
      label="Time range: ${range.label}"
      look="button secondary time-range"
      align="end"
      items=${items}
      button=${html`
        <${Icon} name="clock" />
        <span>${range.label}</span>
        <${Icon} name="down" />
      `}
    />
    ${choosing && html`<${FromTo} range=${range} onClose=${() => choose(false)} />`}
  `;
}

function FromTo({ range, onClose }) {
  const [from, setFrom] = useState(local(range.start));
  const [to, setTo] = useState(local(range.end));
  const start = Date.parse(from) / 1000;
  const end = Date.parse(to) / 1000;
  const wrong = !(start < end)
    ? "It has to be after the start."
    : isTooLong(start, end)
      ? `It has to be at most ${MAX_RANGE_DAYS} days after the start.`
      : "";
  const go = (event) => {
    event.preventDefault();
    if (wrong) return;
    setRange({ from: start, to: end });
    onClose();
  };
  return html`
    <${Dialog}
      title="Time range"
      onClose=${onClose}
      footer=${html`
        <${Button} onClick=${onClose}>Cancel<//>
        <${Button} kind="primary" disabled=${!!wrong} onClick=${go}>
          Show
        <//>
      `}
    >
      <form class="form" onSubmit=${go}>
        <${TextField} label="From" type="datetime-local" value=${from} onValue=${setFrom} />
        <${TextField} label="To" type="datetime-local" value=${to} onValue=${setTo} error=${wrong} />
        <p class="hint">In your own time zone.</p>
      </form>
    <//>
  `;
}

/** Return a time in the form that <input type=datetime-local> takes. */
function local(at) {
  const date = new Date(at * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
