// Amounts of money as people type them, and the integer nano-units that the API counts in.

const NANOS = 1_000_000_000;
const AMOUNT = /^(\d{0,9})(?:[.,](\d{0,9}))?$/;

/**
 * Return an amount such as "0.25" in nanos; null for a text that is no amount, or has more than nine decimal places.
 */
export function toNanos(text) {
  const match = AMOUNT.exec(String(text).trim());
  if (!match || !(match[1] || match[2])) return null;
  return Number(match[1] || 0) * NANOS + Number((match[2] ?? "").padEnd(9, "0"));
}

/** Return nanos as a person types them, such as "0.25", without trailing zeros. */
export function fromNanos(nanos) {
  const digits = String(nanos).padStart(10, "0");
  const fraction = digits.slice(-9).replace(/0+$/, "");
  return digits.slice(0, -9) + (fraction && `.${fraction}`);
}
