"""`python recompute.py ANALYSIS.json`: compute every published number of an experiment anew from its export `analysis`.

Needs the standard library alone: the formulas stand here a second time, so that anybody can check them. The document of
experiments names their sources. Prints JSON in the shape of a look's results.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

NUM_EDGES = math.ceil(math.log(600_000 / 0.1) / math.log(1.02)) + 1
EDGES_MS = [0.1 * 1.02**index for index in range(NUM_EDGES)]
FIELDS = ("n", "y", "yy", "x", "xx", "xy", "d", "dd", "yd")
GUARDRAIL_ALPHA, SRM_ALPHA = 0.01, 0.01
Sums = dict[str, int]
Mean = dict[str, float]


def recompute(export: dict[str, Any]) -> dict[str, Any]:
    """Return what a look at the sums of an export shows."""
    definition, arms = export["definition"], len(export["definition"]["arms"])
    alpha, (wanted, levels) = definition["analysis"]["alpha"], wanted_of(export)
    units = units_of(export, arms)
    comparisons, quantiles, guardrails = [], [], []
    for name, role, declared, margin in wanted:
        about = export["metrics"].get(name)
        if about is None:
            continue
        goal = declared or about["better"]
        for arm in range(1, arms):
            verdict, log_e = "unclear", None
            seen = of_equal_weights(export, arm) if about["needs_equal_weights"] else export
            if about["quantile"] is not None:
                quantiles.append(quantiles_of(seen, name, role, arm, levels[role]))
                verdict = quantile_verdict(quantiles[-1], margin) if goal == "decrease" else "unclear"
            else:
                compared = comparison(seen, units_of(seen, arms), (name, role, goal), arm, levels[role])
                comparisons += [compared] if compared else []
                if about["is_error"]:
                    verdict, log_e = errors_verdict(export, name, arm)
                elif compared and goal:
                    verdict = interval_verdict(compared["relative"], goal, margin)
            if role == "guardrail":
                guardrails.append({"metric": name, "arm": arm, "verdict": verdict, "log_e": log_e})
    srm = srm_log_e([(units[epoch], shares) for epoch, shares in shares_of(export).items()])
    secondary = [at for at, each in enumerate(comparisons) if each["role"] == "secondary"]
    kept = e_bh([comparisons[at]["effect"]["log_e"] for at in secondary], alpha)
    return {
        "arms": [arm_of(export, at) for at in range(arms)],
        "comparisons": comparisons,
        "quantiles": quantiles,
        "discoveries": [secondary[at] for at in kept],
        "guardrails": guardrails,
        "srm_log_e": srm,
        "is_srm": srm >= -math.log(SRM_ALPHA),
        "not_analysed": export["not_analysed"],
    }


def recompute_ages(export: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the effects by days since exposure. A unit that did nothing on a day counts as 0 where all units have a
    value; their number is that of the units whose outcome window ended, all of which have a cost."""
    arms, (wanted, levels) = len(export["definition"]["arms"]), wanted_of(export)
    num = min(export["definition"]["analysis"]["outcome_window_seconds"] // 86_400, 28)
    closed: dict[tuple[int, int], int] = {}
    for _, epoch, arm, name, *values in export["sums"]:
        if name == "cost_nanos":
            closed[epoch, arm] = closed.get((epoch, arm), 0) + values[0]
    found = []
    for name, role, goal, _ in wanted:
        about = export["metrics"].get(name)
        if about is None or about["quantile"] is not None or num < 2:
            continue
        for arm in range(1, arms):
            days: list[Any] = []
            for age in range(num):
                of_day = {
                    (row[0], row[1]): dict(zip(("n", "y", "yy", "d", "dd", "yd"), row[4:], strict=True))
                    for row in export["ages"]
                    if (row[2], row[3]) == (name, age)
                }
                if about["is_in_every_unit"]:
                    of_day = {place: of_day.get(place, {}) | {"n": n} for place, n in closed.items() if n}
                sums = [[0, *place, name, *(each.get(field, 0) for field in FIELDS)] for place, each in of_day.items()]
                what = name, role, goal or about["better"]
                compared = comparison(export | {"sums": sums}, units_of(export, arms), what, arm, levels[role] / num)
                days += [[age, compared]] if compared else []
            if days:
                trend = trend_of(days[0][1]["effect"]["interval"], days[-1][1]["effect"]["interval"])
                found.append({"metric": name, "role": role, "arm": arm, "days": days, "trend": trend})
    return found


def trend_of(first: dict[str, float], last: dict[str, float]) -> str:
    is_lower, is_higher = last["high"] < first["low"], last["low"] > first["high"]
    if not (is_lower or is_higher):
        return "unclear"
    return "fading" if (is_lower and first["low"] > 0) or (is_higher and first["high"] < 0) else "growing"


def wanted_of(export: dict[str, Any]) -> tuple[list[tuple[str, str, str | None, float]], dict[str, float]]:
    """Return each metric with its role, goal and margin, and the level of each role."""
    metrics, alpha = export["definition"]["metrics"], export["definition"]["analysis"]["alpha"]
    wanted = [(each["metric"], "primary", each["goal"], 0.0) for each in metrics["primary"]]
    wanted += [(each["metric"], "guardrail", each["goal"], each["margin"]) for each in metrics["guardrails"]]
    wanted += [(each, "secondary", None, 0.0) for each in metrics["secondary"]]
    primary_alpha = alpha / max(1, len(metrics["primary"]) * (len(export["definition"]["arms"]) - 1))
    return wanted, {"primary": primary_alpha, "guardrail": GUARDRAIL_ALPHA, "secondary": alpha}


def shares_of(export: dict[str, Any]) -> dict[int, list[float]]:
    return {int(epoch): shares for epoch, shares in sorted(export["shares"].items(), key=lambda each: int(each[0]))}


def units_of(export: dict[str, Any], arms: int) -> dict[int, list[int]]:
    found = {epoch: [0] * arms for epoch in shares_of(export)}
    for _, epoch, arm, units, _ in export["units"]:
        found[epoch][arm] += units
    return found


def arm_of(export: dict[str, Any], arm: int) -> dict[str, Any]:
    rows = [row for row in export["units"] if row[2] == arm]
    units, delivered = sum(row[3] for row in rows), sum(row[4] for row in rows)
    name = export["definition"]["arms"][arm]["name"]
    return {"name": name, "units": units, "compliance": delivered / units if units else None}


def sums_of(export: dict[str, Any], metric: str, arm: int) -> dict[int, Sums]:
    """Return the sums of an arm by epoch."""
    found: dict[int, Sums] = {}
    for _, epoch, own_arm, name, *values in export["sums"]:
        if (name, own_arm) == (metric, arm):
            known = found.setdefault(epoch, dict.fromkeys(FIELDS, 0))
            for field, value in zip(FIELDS, values, strict=True):
                known[field] += value
    return found


def covariance(sums: Sums, product: str, a: str, b: str) -> float:
    spread = (sums["n"] * sums[product] - sums[a] * sums[b]) / (sums["n"] * (sums["n"] - 1))
    return max(0.0, spread) if a == b else spread


def mean_of(sums: Sums, theta: float, x_mean: float) -> Mean:
    variance = covariance(sums, "yy", "y", "y")
    variance += theta**2 * covariance(sums, "xx", "x", "x") - 2 * theta * covariance(sums, "xy", "x", "y")
    mean = sums["y"] / sums["n"] - theta * (sums["x"] / sums["n"] - x_mean)
    return {"n": sums["n"], "mean": mean, "variance": max(0.0, variance) / sums["n"]}


def ratio_of(sums: Sums) -> Mean:
    ratio = sums["y"] / sums["d"]
    spread = covariance(sums, "yy", "y", "y") - 2 * ratio * covariance(sums, "yd", "y", "d")
    spread += ratio**2 * covariance(sums, "dd", "d", "d")
    variance = max(0.0, spread) / (sums["n"] * (sums["d"] / sums["n"]) ** 2)
    return {"n": sums["n"], "mean": ratio, "variance": variance}


def stratified(strata: list[tuple[int, Mean]]) -> Mean:
    total = sum(units for units, _ in strata)
    return {
        "n": sum(each["n"] for _, each in strata),
        "mean": math.fsum(units / total * each["mean"] for units, each in strata),
        "variance": math.fsum((units / total) ** 2 * each["variance"] for units, each in strata),
    }


def theta_of(epochs: list[tuple[Sums, Sums]]) -> float:
    both = [{field: a[field] + b[field] for field in FIELDS} for a, b in epochs]
    spread = math.fsum((each["n"] - 1) * covariance(each, "xx", "x", "x") for each in both)
    shared = math.fsum((each["n"] - 1) * covariance(each, "xy", "x", "y") for each in both)
    return shared / spread if spread else 0.0


def comparison(
    export: dict[str, Any], units: dict[int, list[int]], what: tuple[str, str, str | None], arm: int, alpha: float
) -> dict[str, Any] | None:
    name, role, goal = what
    is_ratio, first, second = (
        export["metrics"][name]["kind"] == "ratio",
        *(sums_of(export, name, at) for at in (0, arm)),
    )
    none = dict.fromkeys(FIELDS, 0)
    pairs = [(first.get(epoch, none), second.get(epoch, none)) for epoch in sorted({*first, *second})]
    full = [(a, b) for a, b in pairs if min(a["n"], b["n"]) >= 2 and (not is_ratio or (a["d"] and b["d"]))]
    if not full:
        return None
    theta = 0.0 if is_ratio else theta_of(full)
    estimates = []
    for place in (0, 1):
        strata = []
        for pair in full:
            number = pair[0]["n"] + pair[1]["n"]
            x_mean = (pair[0]["x"] + pair[1]["x"]) / number
            strata.append((number, ratio_of(pair[place]) if is_ratio else mean_of(pair[place], theta, x_mean)))
        estimates.append(stratified(strata))
    control, treatment = estimates
    n = int(control["n"] + treatment["n"])
    u = n * tightest_u(alpha) / export["definition"]["analysis"]["tightest_at"]
    effect, se = treatment["mean"] - control["mean"], math.sqrt(control["variance"] + treatment["variance"])
    radius, low, high, log_e = t_radius(n - 2, u, alpha), -math.inf, math.inf, 0.0
    if se:
        low, high, log_e = effect - se * radius, effect + se * radius, t_log_e(effect / se, n - 2, u)
    better = None if goal is None or log_e < -math.log(alpha) else (effect > 0) == (goal == "increase")
    valued = [sum(each["n"] for each in sums.values()) for sums in (first, second)]
    assigned = [sum(each[at] for each in units.values()) for at in (0, arm)]
    return {
        "metric": name,
        "role": role,
        "arm": arm,
        "control": control,
        "treatment": treatment,
        "effect": {"n": n, "effect": effect, "se": se, "interval": {"low": low, "high": high}, "log_e": log_e},
        "relative": relative_interval(control, treatment, radius),
        "alpha": alpha,
        "is_better": better,
        "answered": [a / b for a, b in zip(valued, assigned, strict=True)] if all(assigned) else None,
    }


def tightest_u(alpha: float) -> float:
    u = 1.0
    for _ in range(200):
        u = -2 * math.log(alpha) + math.log1p(u)
    return u


def t_radius(degrees: int, u: float, alpha: float) -> float:
    if degrees < 1 or u <= 0:
        return math.inf
    r = 1 / (1 + u)
    log_q = (math.log(r) + 2 * math.log(alpha)) / (degrees + 1)
    q = math.exp(log_q)
    return math.sqrt(degrees * -math.expm1(log_q) / (q - r)) if q > r else math.inf


def t_log_e(t: float, degrees: int, u: float) -> float:
    if degrees < 1:
        return 0.0
    r, ratio = 1 / (1 + u), t * t / degrees
    return (math.log(r) + (degrees + 1) * (math.log1p(ratio) - math.log1p(r * ratio))) / 2


def relative_interval(control: Mean, treatment: Mean, radius: float) -> dict[str, float] | None:
    a = control["mean"] ** 2 - radius**2 * control["variance"]
    if not math.isfinite(radius) or a <= 0 or control["mean"] < 0:
        return None
    middle = control["mean"] * treatment["mean"]
    root = math.sqrt(max(0.0, middle**2 - a * (treatment["mean"] ** 2 - radius**2 * treatment["variance"])))
    low, high = sorted(((middle - root) / a - 1, (middle + root) / a - 1))
    return {"low": low, "high": high}


def log_e(counts: list[int], shares: list[float], k: float) -> float:
    total, log = 0, 0.0
    for count, share in zip(counts, shares, strict=True):
        if share > 0:
            log += math.lgamma(k * share + count) - math.lgamma(k * share) - count * math.log(share)
            total += count
        elif count:
            return math.inf
    return log - math.lgamma(k + total) + math.lgamma(k)


def srm_log_e(epochs: list[tuple[list[int], list[float]]]) -> float:
    logs = [math.fsum(log_e(counts, shares, k) for counts, shares in epochs) for k in (100.0, 1_000.0, 10_000.0)]
    highest = max(logs)
    if math.isinf(highest):
        return highest
    return highest + math.log(math.fsum(math.exp(each - highest) for each in logs) / len(logs))


def errors_verdict(export: dict[str, Any], metric: str, arm: int) -> tuple[str, float]:
    first, second, pairs = sums_of(export, metric, 0), sums_of(export, metric, arm), []
    for epoch, shares in shares_of(export).items():
        a, b = shares[0], shares[arm]
        if a > 0 and b > 0:
            failed = [sums[epoch]["y"] if epoch in sums else 0 for sums in (first, second)]
            pairs.append((failed, [a / (a + b), b / (a + b)]))
    found = math.fsum(log_e(failed, shares, 10.0) for failed, shares in pairs)
    more = sum(failed[1] - sum(failed) * shares[1] for failed, shares in pairs) > 0
    return ("harmed" if more and found >= -math.log(GUARDRAIL_ALPHA) else "unclear"), found


def of_equal_weights(export: dict[str, Any], arm: int) -> dict[str, Any]:
    shares = {epoch: each for epoch, each in export["shares"].items() if math.isclose(each[0], each[arm])}
    rows = {name: [row for row in export[name] if str(row[1]) in shares] for name in ("units", "sums", "times")}
    return {**export, "shares": shares, **rows}


def interval_verdict(relative: dict[str, float] | None, goal: str, margin: float) -> str:
    if relative is None:
        return "unclear"
    low, high = relative["low"], relative["high"]
    least, most = (low, high) if goal == "decrease" else (-high, -low)
    return "harmed" if least > margin else "safe" if most < margin else "unclear"


def e_bh(log_es: list[float], alpha: float) -> list[int]:
    order, rejected = sorted(range(len(log_es)), key=lambda index: -log_es[index]), 0
    for k, index in enumerate(order, 1):
        if log_es[index] + math.log(k / len(order)) >= -math.log(alpha) - 1e-12:
            rejected = k
    return sorted(order[:rejected])


def quantiles_of(export: dict[str, Any], name: str, role: str, arm: int, alpha: float) -> dict[str, Any]:
    about, shares = export["metrics"][name], shares_of(export)
    both = {epoch: each for epoch, each in shares.items() if each[0] and each[arm]}
    newest = both[max(both)] if both else []
    alike = {epoch for epoch, each in both.items() if math.isclose(each[0] * newest[arm], each[arm] * newest[0])}
    k = export["definition"]["analysis"]["tightest_at"] / 2 / tightest_u(alpha / 2)
    found = []
    for one in (0, arm):
        counts = [0] * (NUM_EDGES + 1)
        for _, epoch, own_arm, metric, bucket, number in export["times"]:
            if metric == about["name"] and own_arm == one and epoch in alike:
                counts[bucket] += number
        found.append(quantile_interval(counts, about["quantile"], k, alpha / 2))
    control, treatment = found
    difference = {"low": treatment["low"] - control["high"], "high": treatment["high"] - control["low"]}
    return {
        "metric": name,
        "role": role,
        "arm": arm,
        "control": control,
        "treatment": treatment,
        "difference": difference,
        "alpha": alpha,
    }


def quantile_interval(counts: list[int], p: float, k: float, alpha: float) -> dict[str, float]:
    total = sum(counts)
    if not total:
        return {"low": 0.0, "high": math.inf, "estimate": math.nan}

    def is_held(below: int) -> bool:
        return log_e([below, total - below], [p, 1 - p], k) < -math.log(alpha)

    centre = min(total, max(0, round(total * p)))
    low = bisected(centre, -1, is_held)
    high = bisected(centre, total + 1, is_held)
    lower = bucket_of_rank(counts, low) - 1 if low >= 1 else -1
    upper = bucket_of_rank(counts, high + 1) if high + 1 <= total else NUM_EDGES
    middle = bucket_of_rank(counts, max(1, math.ceil(total * p)))
    return {"low": EDGES_MS[lower] if lower >= 0 else 0.0, "high": edge(upper), "estimate": edge(middle)}


def bisected(held: int, refuted: int, is_held: Any) -> int:
    """Return the last number from `held` towards `refuted` that is held."""
    while abs(held - refuted) > 1:
        middle = (held + refuted) // 2
        held, refuted = (middle, refuted) if is_held(middle) else (held, middle)
    return held


def bucket_of_rank(counts: list[int], rank: int) -> int:
    for index, count in enumerate(counts):
        rank -= count
        if rank <= 0:
            return index
    raise ValueError("there are fewer units than the rank")


def edge(bucket: int) -> float:
    return EDGES_MS[bucket] if bucket < NUM_EDGES else math.inf


def quantile_verdict(found: dict[str, Any], margin: float) -> str:
    if found["treatment"]["low"] > found["control"]["high"] * (1 + margin):
        return "harmed"
    return "safe" if found["treatment"]["high"] < found["control"]["low"] * (1 + margin) else "unclear"


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    shown = recompute(given) | {"ages": recompute_ages(given)}
    sys.stdout.write(json.dumps(shown, indent=2) + "\n")
