// Billing periods: months of UTC, "2026-10".

const names = new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric", timeZone: "UTC" });

/** "October 2026". */
export function monthName(period) {
  return names.format(new Date(`${period}-01T00:00:00Z`));
}

/** "2026-10" of an instant in Unix seconds. */
export function monthOf(at) {
  return new Date(at * 1000).toISOString().slice(0, 7);
}

/** Its borders in Unix seconds: {start, end}, end excluded. */
export function monthSpan(period) {
  const [year, month] = period.split("-").map(Number);
  return { start: Date.UTC(year, month - 1) / 1000, end: Date.UTC(year, month) / 1000 };
}

/** The months from that of one instant to that of another, the latest first. */
export function monthsBetween(from, till) {
  const months = [];
  for (let month = monthOf(till); month >= monthOf(from); month = monthOf(monthSpan(month).start - 1))
    months.push(month);
  return months;
}
