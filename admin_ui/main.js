// Starts the dashboard: reads the session, then shows the page that the URL names.

import { Button } from "./components/button.js";
import { Empty, ErrorBox, Skeleton } from "./components/feedback.js";
import { Frame } from "./components/frame.js";
import { Page } from "./components/page.js";
import { Toasts } from "./components/toast.js";
import { html, render, useEffect, useErrorBoundary, useMemo, useState } from "./lib/html.js";
import * as live from "./lib/live.js";
import { ROOT, location$, match, navigate, useLocation } from "./lib/router.js";
import { ROUTES, mayOpen, places } from "./lib/routes.js";
import { isMember, readSession, useSession } from "./lib/session.js";

const SIGN_IN = "/admin/signin";
const ACCOUNT = "/admin/account";

function App() {
  const { path } = useLocation();
  const { state, who, error } = useSession();
  const isHeldBack = state === "in" && who.must_set_up_totp;
  const found = useMemo(() => match(ROUTES, path), [path]);
  const isSignIn = path === SIGN_IN;

  useEffect(() => {
    if (state === "out" && !isSignIn) {
      const { pathname, search } = window.location;
      navigate(
        pathname === "/admin/" && !search ? SIGN_IN : `${SIGN_IN}?next=${encodeURIComponent(pathname + search)}`,
        { replace: true },
      );
    }
    if (state === "in" && isSignIn) navigate(nextPath(), { replace: true });
    if (isHeldBack && path !== ACCOUNT) navigate(ACCOUNT, { replace: true });
    else if (state === "in" && isMember() && path === "/admin/")
      navigate(places(null)[0]?.[1] ?? ACCOUNT, { replace: true });
    if (state === "in" && !isHeldBack) live.start();
    else live.stop();
  }, [state, isHeldBack, path]);

  if (state === "unreachable") {
    return html`
      <main class="alone">
        <${ErrorBox} error=${error} what="reach the gateway" retry=${readSession} />
      </main>
    `;
  }
  if (state === "out" && isSignIn)
    return html`
      <${Shown} key="signin" route=${found.route} params=${{}} />
      <${Toasts} />
    `;
  if (state !== "in" || isSignIn) return null;
  return html`
    <${Bounded}>
      <${Frame} place=${found?.route.place}>
        ${
          !found
            ? html`<${Nowhere} />`
            : mayOpen(found.route)
              ? html`
                <${Shown}
                  key=${found.route.pattern + JSON.stringify(found.params)}
                  route=${found.route}
                  params=${found.params}
                />
              `
              : html`<${Closed} />`
        }
      <//>
    <//>
    <${Toasts} />
  `;
}

/** Shows an error in place of children that throw. */
function Bounded({ children }) {
  const [broken] = useErrorBoundary((error) => console.error(error));
  return broken
    ? html`
      <main class="alone">
        <${Broken} error=${broken} />
      </main>
    `
    : children;
}

const Broken = ({ error }) => html`
  <${ErrorBox}
    error=${{ status: 0, message: String(error.message ?? error) }}
    what="show this page"
    retry=${() => window.location.reload()}
  />
`;

/** Return the path to go to after signing in, which must be a path of the dashboard. */
function nextPath() {
  const next = location$.value.query.get("next") ?? "";
  const { origin } = window.location;
  const url = URL.canParse(next, origin) ? new URL(next, origin) : null;
  const isView = url?.origin === origin && url.pathname.startsWith(ROOT) && url.pathname !== SIGN_IN;
  return isView ? url.pathname + url.search : ROOT;
}

function Shown({ route, params }) {
  const [module, setModule] = useState(null);
  const [failure, setFailure] = useState(null);
  const [broken] = useErrorBoundary((error) => console.error(error));
  useEffect(() => {
    route.load().then(setModule, setFailure);
  }, [route]);
  const error = failure ?? broken;
  if (error)
    return html`
      <div class="page">
        <${Broken} error=${error} />
      </div>
    `;
  if (!module)
    return html`
      <div class="page">
        <${Skeleton} lines=${5} />
      </div>
    `;
  return html`<${module.default} params=${params} />`;
}

function Nowhere() {
  return html`
    <${Page} title="Not found">
      <${Empty}
        icon="search"
        title="Nothing is at this address"
        action=${html`<${Button} kind="primary" href="/admin/">
            Go to the overview
          <//>`}
      >
        It may have been removed, or the link is wrong. <kbd>/</kbd> searches everything.
      <//>
    <//>
  `;
}

function Closed() {
  return html`
    <${Page} title="Not for your role">
      <${Empty} icon="shield" title="Your role does not show this">
        Ask an owner or an admin of the organization if you need it.
      <//>
    <//>
  `;
}

render(html`<${App} />`, document.getElementById("app"));
readSession();
