// Checks of typed values: each returns a sentence that says what is wrong, or undefined if the value is right.

const MODEL_NAME = /^[a-z0-9][a-z0-9._-]*$/;
const MAX_NAME_CHARS = 64;
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)$/;
const EMAIL = /^[^\s@<>"`\\]+@[^\s@<>"`\\]+$/;

export const given = (text, sentence) => (String(text).trim() ? undefined : sentence);

export const named = (text) => given(text, "Give it a name.");

/** Check that a text has at most so many characters; the field does not cut it off. */
export const notLonger = (text, most) =>
  [...text.trim()].length > most ? `It has ${[...text.trim()].length} characters, and ${most} at most.` : undefined;

/** Check the name of an adapter or of an alias. */
export const modelName = (text) =>
  named(text) ??
  notLonger(text, MAX_NAME_CHARS) ??
  (MODEL_NAME.test(text)
    ? undefined
    : "The name begins with a letter or digit and goes on with lower-case letters, digits, dots, dashes " +
      "and underlines, at most 64, such as support-bot.");

export const address = (text) =>
  given(text, "Give an e-mail address.") ??
  (EMAIL.test(text.trim()) ? undefined : "That is no e-mail address, such as ann@example.com.");

/** Check a web address, which must not have a user's name in it. */
export function webAddress(text) {
  const { protocol, username, password } = URL.canParse(text.trim()) ? new URL(text.trim()) : {};
  return ["http:", "https:"].includes(protocol) && !username && !password
    ? undefined
    : "Give an address that begins with https:// or http://, such as https://example.com, without a user name.";
}

/** Check a number within a range. An empty text is right: no number is given. */
export function number(text, { min, max }) {
  if (String(text).trim() === "") return undefined;
  if (!NUMBER.test(String(text).trim())) return "Give a number, such as 0.5.";
  const value = Number(text);
  if (value < min) return `It is at least ${min}.`;
  return value > max ? `It is at most ${max}.` : undefined;
}

/** Check a whole number within a range. An empty text is right if the number is optional. */
export function whole(text, { min = 0, max = Number.MAX_SAFE_INTEGER, optional = false } = {}) {
  if (String(text).trim() === "") return optional ? undefined : "Give a whole number.";
  if (!/^[-+]?\d+$/.test(String(text).trim()))
    return Number.isFinite(Number(text))
      ? "Only a whole number: it is not rounded."
      : "Give a whole number, such as 1000.";
  const value = Number(text);
  if (value < min) return `It is at least ${min}.`;
  return value > max ? `It is at most ${max}.` : undefined;
}
