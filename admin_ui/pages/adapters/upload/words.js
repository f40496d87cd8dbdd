// Sentences that both ways of adding an adapter show.

import { modelName } from "../../../lib/rules/checks.js";

export const PROMOTE_HINT =
  "Requests get it once an engine has tried it. Without, it waits as a version that you can promote.";

export const NAME_HINT =
  'Programs call it as model "base:name". Lower-case letters, digits, dots, dashes and underlines; a name that exists gets a new version.';

export const checkName = ({ name }) => ({ name: modelName(name) });
