// First passwords for people: made here, shown once, for them to change.

const LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"; // none that look like another
const GROUPS = 4;
const GROUP_LETTERS = 5;

/** Return a password of 100 random bits in four groups: "k7mzq-…". */
export function newPassword() {
  const random = crypto.getRandomValues(new Uint8Array(GROUPS * GROUP_LETTERS));
  const letters = [...random].map((byte) => LETTERS[byte % LETTERS.length]).join("");
  return letters.match(new RegExp(`.{${GROUP_LETTERS}}`, "g")).join("-");
}
