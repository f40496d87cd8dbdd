// The frame around every page: the rail of links, the top bar, and the keyboard shortcuts from page to page.

import { html, useState } from "../lib/html.js";
import { shortcutList, useShortcut } from "../lib/rules/keys.js";
import { togglePaused, useLiveState, useLostSince } from "../lib/live.js";
import { useProjectId } from "../lib/projects.js";
import { decode, navigate, useLocation } from "../lib/router.js";
import { places } from "../lib/routes.js";
import { signOut, useSession } from "../lib/session.js";
import { setTheme, useTheme } from "../lib/theme.js";
import { short } from "../lib/format/time.js";
import { Dialog } from "./dialog.js";
import { Icon } from "./icons.js";
import { Menu } from "./menu.js";
import { ProjectSwitch } from "./project_switch.js";
import { Search } from "./search.js";
import { TimeRange } from "./time_range.js";
import { toast } from "./toast.js";

const NUM_IN_BAR = 4;

export function Frame({ place, children }) {
  const { path } = useLocation();
  const projectId = useProjectId();
  const entries = places(projectId);
  const [helping, help] = useState(false);
  useShortcut("?", "Keyboard shortcuts", () => help(true));
  const isHere = ([, href, , name]) => (name === place && !href.includes("/tenants/")) || decode(path) === decode(href);
  const link = (entry) => html`
    <a key=${entry[1]} class="rail-link" href=${entry[1]} aria-current=${isHere(entry) ? "page" : undefined}>
      <${Icon} name=${entry[2]} size=${18} />
      <span>${entry[0]}</span>
    </a>
  `;
  const rest = entries.slice(NUM_IN_BAR);
  return html`
    <div class="frame">
      <a
        class="skip"
        href="#main"
        onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}
      >
        Skip to the content
      </a>
      <nav class="rail" aria-label="Places">
        <a class="brand" href="/admin/">
          <img src="/admin/icon.svg" alt="" width="22" height="22" />
          <span>Lorikeet</span>
        </a>
        <div class="rail-links">${entries.map(link)}</div>
        <div class="rail-foot">
          <${LiveSwitch} />
        </div>
      </nav>
      <header class="bar">
        <${ProjectSwitch} />
        <div class="bar-end">
          <${Search} places=${entries} />
          <${TimeRange} />
          <${Account} onHelp=${() => help(true)} />
        </div>
      </header>
      <main class="main" id="main" tabindex="-1">
        <${Lost} />
        ${children}
      </main>
      <nav class="dock" aria-label="Places">
        ${entries.slice(0, NUM_IN_BAR).map(link)}
        ${
          rest.length > 0 &&
          html`
            <${Menu}
              label="More places"
              look="rail-link"
              align="end"
              up
              isHere=${rest.some(isHere)}
              items=${rest.map((entry) => ({ title: entry[0], href: entry[1], icon: entry[2], isHere: isHere(entry) }))}
              button=${html`
                <${Icon} name="more" size=${18} />
                <span>More</span>
              `}
            />
          `
        }
      </nav>
      ${entries.map((entry) => html`<${PlaceKey} key=${entry[1]} entry=${entry} />`)}
      ${helping && html`<${Help} onClose=${() => help(false)} />`}
    </div>
  `;
}

function PlaceKey({ entry: [title, href, , , key] }) {
  useShortcut(`g ${key}`, `Go to ${title}`, () => navigate(href));
  return null;
}

/** The notice that the gateway does not answer, so that shown data is out of date. */
function Lost() {
  const since = useLostSince();
  return (
    since !== null &&
    html`
      <p class="lost" role="status">
        <${Icon} name="alert" /> Not connected: the gateway does not answer. What is shown is of ${short(since)}.
      </p>
    `
  );
}

const LIVE = {
  live: ["Live", "Updates come as things happen. Pause them."],
  connecting: ["Connecting", "The live updates are being connected. Pause them."],
  paused: ["Paused", "Nothing on the page changes by itself. Go on."],
  off: ["Not live", "The server sends no live updates now; pages show what was when they were loaded. Pause."],
};

function LiveSwitch() {
  const state = useLiveState();
  useShortcut("l", "Pause or resume live updates", togglePaused);
  const [word, hint] = LIVE[state];
  return html`
    <button
      type="button"
      class="live-switch ${state}"
      aria-pressed=${state === "paused"}
      title=${hint}
      onClick=${togglePaused}
    >
      <i class="live-dot"></i>
      <span>${word}</span>
      <${Icon} name=${state === "paused" ? "play" : "pause"} size=${14} />
    </button>
  `;
}

const THEMES = [
  ["", "System theme", "display"],
  ["light", "Light", "sun"],
  ["dark", "Dark", "moon"],
];

function Account({ onHelp }) {
  const { who } = useSession();
  const theme = useTheme();
  const leave = () => signOut().catch((error) => toast(error.message, { tone: "bad" }));
  const items = [
    { title: "Account", hint: who.email, icon: "user", href: "/admin/account" },
    null,
    ...THEMES.map(([name, title, icon]) => ({ title, icon, checked: theme === name, onClick: () => setTheme(name) })),
    null,
    { title: "Keyboard shortcuts", icon: "help", onClick: onHelp },
    { title: "Sign out", icon: "out", onClick: leave },
  ];
  return html`
    <${Menu}
      label="Account of ${who.email}"
      look="avatar"
      align="end"
      items=${items}
      button=${html`<span aria-hidden="true">${who.email.slice(0, 1).toUpperCase()}</span>`}
    />
  `;
}

function Help({ onClose }) {
  return html`
    <${Dialog} title="Keyboard shortcuts" onClose=${onClose}>
      <dl class="shortcuts">
        ${[...shortcutList(), ["Ctrl K", "Search"], ["Esc", "Close what is open"]].map(
          ([keys, title]) => html`
            <div key=${keys}>
              <dt>${title}</dt>
              <dd>
                ${keys.split(" ").map((key) => html`<kbd key=${key}>${key}</kbd>`)}
              </dd>
            </div>
          `,
        )}
      </dl>
    <//>
  `;
}
