// Tables as CSV (RFC 4180). A cell that a spreadsheet would run as a formula is quoted with an apostrophe.

/** The first characters by which spreadsheets know a formula, as in `FORMULA_STARTS` of the server's exports. */
const FORMULA = /^[=+\-@\t\r\n'＝＋－＠]/;

export function csv(header, rows) {
  return [header, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
