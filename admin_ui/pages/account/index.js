// The reader's own account: password, authenticator, and where they are signed in.

import { Code } from "../../components/button.js";
import { Notice } from "../../components/feedback.js";
import { Time } from "../../components/numbers.js";
import { Facts, Page, Section } from "../../components/page.js";
import { html } from "../../lib/html.js";
import { useSession } from "../../lib/session.js";
import { Passkeys } from "./passkeys.js";
import { Authenticator } from "./authenticator.js";
import { Password } from "./password.js";
import { Sessions } from "./sessions.js";

const ROLES = {
  owner: "Owner of the organization",
  admin: "Admin of the organization",
  billing: "Billing",
  viewer: "Viewer",
};

const wayOn = (who) =>
  who.has_passkey_here
    ? "Sign out, and in again with your passkey, to go on."
    : who.has_passkey
      ? "Your passkeys belong to another address that this server had before. Ask somebody who manages users to " +
        "remove them, and set up a new one then."
      : "Set up an authenticator or a passkey to go on.";

export default function Account() {
  const { who } = useSession();
  const projects = (who.projects ?? []).map(({ name, role }) => `${name} (${role})`).join(", ");
  return html`
    <${Page} title="Account" lead="How you sign in, and where you are signed in now.">
      ${
        who.must_set_up_totp &&
        html`<${Notice} tone="warn">People with your role need a second factor here. ${wayOn(who)}<//>`
      }
      <${Section} card>
        <${Facts}
          rows=${[
            ["E-mail", who.email],
            ["Role", ROLES[who.role] ?? "Member of single projects"],
            ["Projects", projects || undefined],
            ["Signed in until", html`<${Time} at=${who.expires_at} />`],
            ["User id", html`<${Code} text=${who.user_id} what="user id" />`],
          ]}
        />
      <//>
      <${Password} />
      <${Authenticator} has=${who.has_totp} isNeeded=${who.needs_second_factor} />
      <${Passkeys} hasCode=${who.has_totp} />
      <${Sessions} />
    <//>
  `;
}
