// What is wrong with what was typed, as a sentence for its field; undefined where it is right.

const EMAIL = /^[^\s@<>"`\\]+@[^\s@<>"`\\]+$/;

export const given = (text, sentence) => (String(text).trim() ? undefined : sentence);

export const named = (text) => given(text, "Give it a name.");

export const address = (text) => given(text, "Give an e-mail address.") ?? (EMAIL.test(text.trim()) ? undefined : "That is no e-mail address, such as ann@example.com.");

/** A whole number of this range. Empty is none: right where it is optional. */
export function whole(text, { min = 0, max = Number.MAX_SAFE_INTEGER, optional = false } = {}) {
  if (String(text).trim() === "") return optional ? undefined : "Give a whole number.";
  if (!/^[-+]?\d+$/.test(String(text).trim())) return Number.isFinite(Number(text)) ? "Only a whole number: it is not rounded." : "Give a whole number, such as 1000.";
  const value = Number(text);
  if (value < min) return `It is at least ${min}.`;
  return value > max ? `It is at most ${max}.` : undefined;
}
