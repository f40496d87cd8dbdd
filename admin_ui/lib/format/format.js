// Numbers as people read them. Each has an exact form too, for the hover: nothing is rounded out of sight.

const LOCALE = undefined; // the reader's
const exact = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 9 });

/** Return a count with three significant digits: 950, 12.3k, 4.56M, 1.2B. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size < 1000) return exact.format(Math.round(value * 100) / 100);
  const [unit, name] =
    size < 999_500 ? [1e3, "k"] : size < 999_500_000 ? [1e6, "M"] : size < 999.5e9 ? [1e9, "B"] : [1e12, "T"];
  return `${significant(value / unit)}${name}`;
}

export const tokens = count;

export function exactly(value) {
  return value === null || value === undefined ? "–" : exact.format(value);
}

function significant(value, digits = 3) {
  return new Intl.NumberFormat(LOCALE, { maximumSignificantDigits: digits }).format(value);
}

/** Return an amount in nano-units as text: three significant digits below a thousand, whole cents above. */
export function money(nanos, currency = "USD") {
  if (nanos === null || nanos === undefined) return "–";
  const value = nanos / 1e9;
  const size = Math.abs(value);
  const style = { style: "currency", currency: currency.toUpperCase(), currencyDisplay: "narrowSymbol" };
  if (size === 0) return new Intl.NumberFormat(LOCALE, { ...style, maximumFractionDigits: 0 }).format(0);
  if (size >= 10) return new Intl.NumberFormat(LOCALE, { ...style, maximumFractionDigits: 2 }).format(value);
  return new Intl.NumberFormat(LOCALE, { ...style, minimumSignificantDigits: 3, maximumSignificantDigits: 3 }).format(
    value,
  );
}

/** Return an amount in nano-units as text with the currency's code, to the last nano-unit. */
export function exactMoney(nanos, currency = "USD") {
  if (nanos === null || nanos === undefined) return "–";
  const digits = String(Math.abs(Math.trunc(nanos))).padStart(10, "0");
  const fraction = digits.slice(-9).replace(/0+$/, "").padEnd(2, "0");
  return `${nanos < 0 ? "−" : ""}${digits.slice(0, -9)}.${fraction} ${currency.toUpperCase()}`;
}

/** Return milliseconds as text: 0.42 ms, 18 ms, 1.24 s, 2 min 5 s. */
export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1000) return `${significant(value, value < 10 ? 2 : 3)} ms`;
  return seconds(value / 1000);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 60) return `${significant(value)} s`;
  const [size, unit, rest, restUnit] =
    value < 3600 ? [60, "min", 1, "s"] : value < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
  const whole = Math.floor(value / size);
  const left = Math.floor((value - whole * size) / rest);
  return left ? `${whole} ${unit} ${left} ${restUnit}` : `${whole} ${unit}`;
}

const LENGTHS = [
  [86400, "day"],
  [3600, "hour"],
  [60, "minute"],
  [1, "second"],
];

/** Return a duration in whole seconds as text: 5 minutes, 2 hours, 7 days, 1 day and 12 hours. */
export function duration(whole) {
  if (!Number.isFinite(whole)) return "–";
  let left = Math.round(whole);
  const parts = [];
  for (const [size, unit] of LENGTHS) {
    const number = Math.floor(left / size);
    left -= number * size;
    if (number) parts.push(plural(number, unit));
  }
  return parts.length < 2 ? (parts[0] ?? "0 seconds") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

/** Return a share from 0 to 1 as text: 0.42 %, 12.3 %, 99.99 %. A share below 1 is never shown as 100 %. */
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const value = share * 100;
  const digits = [3, 4, 5, 6].find((each) => value >= 100 || Number(value.toPrecision(each)) < 100) ?? 7;
  return `${significant(value, digits)} %`;
}

/** Return a relative difference as text, where 1 means twice as much: +4.2 %, −0.31 %. */
export function change(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const value = share * 100;
  const sign = value > 0 ? "+" : value < 0 ? "−" : "";
  return `${sign}${significant(Math.abs(value), 3)} %`;
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < BYTES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${significant(value)} ${BYTES[unit]}`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
