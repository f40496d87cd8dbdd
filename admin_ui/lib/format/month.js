// Billing periods: months of UTC, "2026-10".

const names = new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric", timeZone: "UTC" });

/** Return the name of a month: "October 2026" for "2026-10". */
export function monthName(period) {
  return names.format(new Date(`${period}-01T00:00:00Z`));
}

/** Return the month of a time in Unix seconds, such as "2026-10". */
export function monthOf(at) {
  return new Date(at * 1000).toISOString().slice(0, 7);
}

/** Return {start, end} of a month in Unix seconds; end is excluded. */
export function monthSpan(period) {
  const [year, month] = period.split("-").map(Number);
  return { start: Date.UTC(year, month - 1) / 1000, end: Date.UTC(year, month) / 1000 };
}

/** Return the months from one time to another, the latest first. */
export function monthsBetween(from, till) {
  const months = [];
  for (let month = monthOf(till); month >= monthOf(from); month = monthOf(monthSpan(month).start - 1))
    months.push(month);
  return months;
}
