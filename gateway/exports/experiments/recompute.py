"""`python recompute.py ANALYSIS.json`: compute every published number of an experiment anew from its export `analysis`.

Needs the standard library alone: the formulas stand here a second time, so that anybody can check them. The document of
experiments names their sources. Prints JSON in the shape of a look's results, with `ages` and
`segments` beside it.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from bisect import bisect_left
from itertools import accumulate
from pathlib import Path
from typing import Any

NUM_EDGES = math.ceil(math.log(600_000 / 0.1) / math.log(1.02)) + 1
EDGES_MS = [0.1 * 1.02**index for index in range(NUM_EDGES)]
FIELDS = ("n", "y", "yy", "x", "xx", "xy", "d", "dd", "yd")
GUARDRAIL_ALPHA, SRM_ALPHA = 0.01, 0.01
Sums = dict[str, int]
Mean = dict[str, float]


class Tally:
    """The numbers of an export that formulas need: of all units, or of those of one segment."""

    def __init__(self, export: dict[str, Any], segment: tuple[str, str] | None = None) -> None:
        definition = export["definition"]
        self.arms: list[str] = [arm["name"] for arm in definition["arms"]]
        self.tightest_at: int = definition["analysis"]["tightest_at"]
        shares = {int(epoch): each for epoch, each in export["shares"].items()}
        self.shares: dict[int, list[float]] = dict(sorted(shares.items()))
        self.units = {epoch: [0] * len(self.arms) for epoch in self.shares}
        self.delivered = [0] * len(self.arms)
        self.sums: dict[tuple[str, int], dict[int, Sums]] = {}  # by metric and arm, then by epoch
        self.times: list[tuple[int, int, str, int, int]] = []  # epoch, arm, metric, bucket, units
        if segment is None:
            units, sums = ([row[1:] for row in export[name]] for name in ("units", "sums"))
            self.times = [tuple(row[1:]) for row in export["times"]]
        else:
            units, sums = (
                [row[2:] for row in export[name] if tuple(row[:2]) == segment]
                for name in ("segment_units", "segment_sums")
            )
        for epoch, arm, num, delivered in units:
            self.units[epoch][arm] += num
            self.delivered[arm] += delivered
        for epoch, arm, metric, *values in sums:
            known = self.sums.setdefault((metric, arm), {}).setdefault(epoch, dict.fromkeys(FIELDS, 0))
            for field, value in zip(FIELDS, values, strict=True):
                known[field] += value

    def of_equal_weights(self, arm: int) -> Tally:
        """Return the numbers of only those epochs in which an arm had the control's weight."""
        found = copy.copy(self)
        found.shares = {epoch: each for epoch, each in self.shares.items() if math.isclose(each[0], each[arm])}
        found.units = {epoch: self.units[epoch] for epoch in found.shares}
        found.times = [row for row in self.times if row[0] in found.shares]
        found.sums = {}
        for key, by_epoch in self.sums.items():
            if shared := {epoch: each for epoch, each in by_epoch.items() if epoch in found.shares}:
                found.sums[key] = shared
        return found


def recompute(export: dict[str, Any], segment: tuple[str, str] | None = None) -> dict[str, Any]:
    """Return the results of a look, computed from the sums of an export. segment: a kind and a value."""
    tally, alpha = Tally(export, segment), export["definition"]["analysis"]["alpha"]
    wanted, levels = metrics_and_levels(export)
    treatments = range(1, len(tally.arms))
    comparisons: list[dict[str, Any]] = []
    quantiles: list[dict[str, Any]] = []
    guardrails: list[dict[str, Any]] = []
    for name, role, declared, margin in wanted:
        about = export["metrics"].get(name)
        if about is None:
            continue
        goal, level = declared or about["better"], levels[role]
        for arm in treatments:
            verdict, log_e = "unclear", None
            seen = tally.of_equal_weights(arm) if about["needs_equal_weights"] else tally
            what = {"metric": name, "role": role, "arm": arm, "alpha": level}
            if about["quantile"] is not None:
                quantiles.append(what | quantiles_of(seen, about, arm, level))
                verdict = quantile_verdict(quantiles[-1], margin) if goal == "decrease" else "unclear"
            else:
                compared = comparison(seen, name, about["kind"] == "ratio", goal, arm, level)
                comparisons += [what | compared] if compared else []
                if about["is_error"]:
                    verdict, log_e = errors_verdict(tally, name, arm)
                elif compared and goal:
                    verdict = interval_verdict(compared["relative"], goal, margin)
            if role == "guardrail":
                guardrails.append({"metric": name, "arm": arm, "verdict": verdict, "log_e": log_e})
    srm = srm_log_e([(tally.units[epoch], shares) for epoch, shares in tally.shares.items()])
    secondary = [at for at, each in enumerate(comparisons) if each["role"] == "secondary"]
    rejected = e_bh([comparisons[at]["effect"]["log_e"] for at in secondary], alpha)
    return {
        "arms": [
            {"name": name, "units": sum(units), "compliance": whole / sum(units) if sum(units) else None}
            for name, whole, *units in zip(tally.arms, tally.delivered, *tally.units.values(), strict=True)
        ],
        "comparisons": comparisons,
        "quantiles": quantiles,
        "discoveries": [secondary[at] for at in rejected],
        "guardrails": guardrails,
        "srm_log_e": srm,
        "is_srm": srm >= -math.log(SRM_ALPHA),
        "not_analysed": export["not_analysed"],
        "judged": [
            {"metric": name, "role": role, "arm": arm, "alpha": levels[role], "found": found}
            for name, role, *_ in wanted
            for arm in treatments
            if (found := judged_of(tally, name, arm, levels[role])) is not None
        ],
    }


def judged_of(tally: Tally, metric: str, arm: int, alpha: float) -> dict[str, Any] | None:
    """Return the comparison of an arm with the control by a metric on which people and a judge vote.

    In the sums of units on which both have voted, y is the people's mean and x is the judge's; in the sums of all other
    units, y is the judge's mean. All means are in millionths.
    """
    nothing, epochs = dict.fromkeys(FIELDS, 0), []
    for epoch in tally.shares:
        pair = [
            tuple(tally.sums.get((metric + end, one), {}).get(epoch, nothing) for end in (":both", ":judge"))
            for one in (0, arm)
        ]
        if all(sums["n"] >= 2 for each in pair for sums in each):
            epochs.append(pair)
    if not epochs:
        return None
    control, treatment = ([judged_epoch(pair, one) for pair in epochs] for one in (0, 1))
    labelled, judged = ([sum(pair[one][at]["n"] for pair in epochs) for one in (0, 1)] for at in (0, 1))
    (powered, people, judge), (powered_b, people_b, judge_b) = (
        [stratified([(units, means[at]) for units, means, _ in of_arm]) for at in range(3)]
        for of_arm in (control, treatment)
    )
    u = sum(labelled) * tightest_u(alpha) / max(20, round(tally.tightest_at / 20))
    return {
        "num_labelled": labelled,
        "num_judged": judged,
        "control": powered,
        "treatment": powered_b,
        "effect": effect_of(powered, powered_b, sum(labelled) + sum(judged), sum(labelled) - 2, u, alpha),
        "by_people": effect_of(people, people_b, sum(labelled), sum(labelled) - 2, u, alpha),
        "by_judge": judge_b["mean"] - judge["mean"],
        "judge_weights": [control[-1][2], treatment[-1][2]],
    }


def judged_epoch(pair: list[tuple[Sums, ...]], side: int) -> tuple[int, list[Mean], float]:
    """Return, for one epoch, the units of the control and the arm together, one side's means, and the judge's weight.

    The three means are that of people with the judge's help, that of people alone, and that of the judge alone.

    pair: for the control and for the arm, the sums of units on which people and the judge voted, and those of units on
    which only the judge did. side: 0: the means are the control's; 1: the arm's.
    """
    both, others = pair[side]
    scores = dict.fromkeys(FIELDS, 0) | {
        "n": both["n"] + others["n"],
        "y": both["x"] + others["y"],
        "yy": both["xx"] + others["yy"],
    }
    spread, shared = covariance(scores, "yy", "y", "y"), covariance(both, "xy", "x", "y")
    weight = shared / (spread * (1 + both["n"] / others["n"])) if spread else 0.0
    residual = covariance(both, "yy", "y", "y") + weight**2 * covariance(both, "xx", "x", "x") - 2 * weight * shared
    alone = mean_of(both, 0.0, 0.0)
    helped: Mean = {
        "n": both["n"],
        "mean": alone["mean"] + weight * (others["y"] / others["n"] - both["x"] / both["n"]),
        "variance": max(0.0, residual) / both["n"] + weight**2 * covariance(others, "yy", "y", "y") / others["n"],
    }
    means = [
        each | {"mean": each["mean"] / 1e6, "variance": each["variance"] / 1e12}
        for each in (helped, alone, mean_of(scores, 0.0, 0.0))
    ]
    return sum(sums["n"] for each in pair for sums in each), means, weight


def effect_of(control: Mean, treatment: Mean, n: int, degrees: int, u: float, alpha: float) -> dict[str, Any]:
    """Return the difference of two means, with its confidence interval and its evidence."""
    effect, se = treatment["mean"] - control["mean"], math.sqrt(control["variance"] + treatment["variance"])
    low, high, log_e = -math.inf, math.inf, 0.0
    if se:
        half, log_e = se * t_radius(degrees, u, alpha), t_log_e(effect / se, degrees, u)
        low, high = effect - half, effect + half
    return {"n": n, "effect": effect, "se": se, "interval": {"low": low, "high": high}, "log_e": log_e}


def metrics_and_levels(export: dict[str, Any]) -> tuple[list[tuple[str, str, str | None, float]], dict[str, float]]:
    """Return each metric with its role, goal and margin, and the significance level of each role."""
    metrics, alpha = export["definition"]["metrics"], export["definition"]["analysis"]["alpha"]
    wanted = [(each["metric"], "primary", each["goal"], 0.0) for each in metrics["primary"]]
    wanted += [(each["metric"], "guardrail", each["goal"], each["margin"]) for each in metrics["guardrails"]]
    wanted += [(each, "secondary", None, 0.0) for each in metrics["secondary"]]
    primary_alpha = alpha / max(1, len(metrics["primary"]) * (len(export["definition"]["arms"]) - 1))
    return wanted, {"primary": primary_alpha, "guardrail": GUARDRAIL_ALPHA, "secondary": alpha}


def recompute_ages(export: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the effects by days since exposure, each day's of all units whose outcome window ended."""
    tally, (wanted, levels) = Tally(export), metrics_and_levels(export)
    num = min(export["definition"]["analysis"]["outcome_window_seconds"] // 86_400, 28)
    found = []
    for name, role, goal, _ in wanted:
        about = export["metrics"].get(name)
        if about is None or about["quantile"] is not None or num < 2:
            continue
        tallies = [tally_of_age(export, name, age, fills=about["is_in_every_unit"]) for age in range(num)]
        for arm in range(1, len(tally.arms)):
            days: list[Any] = []
            for age, of_age in enumerate(tallies):
                alpha = levels[role] / num
                compared = comparison(of_age, name, about["kind"] == "ratio", goal or about["better"], arm, alpha)
                what = {"metric": name, "role": role, "arm": arm, "alpha": alpha}
                days += [[age, what | compared]] if compared else []
            if days:
                trend = trend_of(days[0][1]["effect"]["interval"], days[-1][1]["effect"]["interval"])
                found.append({"metric": name, "role": role, "arm": arm, "days": days, "trend": trend})
    return found


def tally_of_age(export: dict[str, Any], metric: str, age: int, *, fills: bool) -> Tally:
    """Return the sums of a metric over one day since exposure.

    fills: whether a unit that did nothing on the day counts as 0. The number of units is then that of `cost_nanos`, a
    metric for which each unit has a value once its outcome window has ended.
    """
    tally = Tally(export)
    of_all, tally.sums = tally.sums, {}
    for epoch, arm, name, own_age, *values in export["ages"]:
        if (name, own_age) == (metric, age):
            of_day = dict(zip(("n", "y", "yy", "d", "dd", "yd"), values, strict=True))
            tally.sums.setdefault((metric, arm), {})[epoch] = dict.fromkeys(FIELDS, 0) | of_day
    for arm in range(len(tally.arms) if fills else 0):
        of_arm = tally.sums.setdefault((metric, arm), {})
        for epoch, costs in of_all.get(("cost_nanos", arm), {}).items():
            if costs["n"]:
                of_arm[epoch] = of_arm.get(epoch, dict.fromkeys(FIELDS, 0)) | {"n": costs["n"]}
    return tally


def trend_of(first: dict[str, float], last: dict[str, float]) -> str:
    """Return "fading", "growing" or "unclear" for an effect, by its first and its last interval."""
    is_lower, is_higher = last["high"] < first["low"], last["low"] > first["high"]
    if not (is_lower or is_higher):
        return "unclear"
    return "fading" if (is_lower and first["low"] > 0) or (is_higher and first["high"] < 0) else "growing"


def segments_of(export: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of a look at each segment, in the order of kinds and values as they are exported."""
    found = []
    for kind, value in dict.fromkeys((row[0], row[1]) for row in export["segment_units"]):
        tally, shown = Tally(export, (kind, value)), recompute(export, (kind, value))
        counted = list(zip(tally.units.values(), tally.shares.values(), strict=True))
        arms = range(len(tally.arms))
        split = {
            "kind": kind,
            "value": value,
            "units": [sum(units[arm] for units, _ in counted) for arm in arms],
            "expected": [sum(sum(units) * shares[arm] for units, shares in counted) for arm in arms],
            "log_e": shown["srm_log_e"],
        }
        found.append({"split": split, "arms": shown["arms"], "comparisons": shown["comparisons"]})
    broken = e_bh([each["split"]["log_e"] for each in found], SRM_ALPHA)
    for at, each in enumerate(found):
        each["split"]["is_srm"] = at in broken
    for kind in {each["split"]["kind"] for each in found}:
        own = [each for each in found if each["split"]["kind"] == kind]
        places = [(at, index) for at, each in enumerate(own) for index in range(len(each["comparisons"]))]
        log_es = [own[at]["comparisons"][index]["effect"]["log_e"] for at, index in places]
        rejected = [places[at] for at in e_bh(log_es, export["definition"]["analysis"]["alpha"])]
        for at, each in enumerate(own):
            each["discoveries"] = [index for place, index in rejected if place == at]
    return found


def covariance(sums: Sums, product: str, a: str, b: str) -> float:
    """Return the covariance of two values from the sums of their products and of themselves."""
    spread = (sums["n"] * sums[product] - sums[a] * sums[b]) / (sums["n"] * (sums["n"] - 1))
    return max(0.0, spread) if a == b else spread


def mean_of(sums: Sums, theta: float, x_mean: float) -> Mean:
    """Return the CUPED-adjusted mean, and its variance."""
    variance = covariance(sums, "yy", "y", "y")
    variance += theta**2 * covariance(sums, "xx", "x", "x") - 2 * theta * covariance(sums, "xy", "x", "y")
    mean = sums["y"] / sums["n"] - theta * (sums["x"] / sums["n"] - x_mean)
    return {"n": sums["n"], "mean": mean, "variance": max(0.0, variance) / sums["n"]}


def ratio_of(sums: Sums) -> Mean:
    """Return the ratio of two means and its variance, by the delta method."""
    ratio = sums["y"] / sums["d"]
    spread = covariance(sums, "yy", "y", "y") - 2 * ratio * covariance(sums, "yd", "y", "d")
    spread += ratio**2 * covariance(sums, "dd", "d", "d")
    variance = max(0.0, spread) / (sums["n"] * (sums["d"] / sums["n"]) ** 2)
    return {"n": sums["n"], "mean": ratio, "variance": variance}


def stratified(strata: list[tuple[int, Mean]]) -> Mean:
    """Return the mean over strata, each weighted by its units."""
    total = sum(units for units, _ in strata)
    return {
        "n": sum(each["n"] for _, each in strata),
        "mean": math.fsum(units / total * each["mean"] for units, each in strata),
        "variance": math.fsum((units / total) ** 2 * each["variance"] for units, each in strata),
    }


def theta_of(pairs: list[tuple[Sums, Sums]]) -> float:
    """Return CUPED's theta: the regression coefficient of the outcome on the value from before the experiment."""
    both = [{field: a[field] + b[field] for field in FIELDS} for a, b in pairs]
    spread = math.fsum((each["n"] - 1) * covariance(each, "xx", "x", "x") for each in both)
    shared = math.fsum((each["n"] - 1) * covariance(each, "xy", "x", "y") for each in both)
    return shared / spread if spread else 0.0


def comparison(
    tally: Tally, metric: str, is_ratio: bool, goal: str | None, arm: int, alpha: float
) -> dict[str, Any] | None:
    """Return how an arm compares with the control in one metric; None without units in both.

    is_ratio: the metric is a ratio of two sums, not a mean. goal: "increase" or "decrease"; None: neither. alpha: the
    error level of the interval.
    """
    first, second = (tally.sums.get((metric, one), {}) for one in (0, arm))
    pairs = [(first[epoch], second[epoch]) for epoch in sorted(first.keys() & second.keys())]
    full = [pair for pair in pairs if all(each["n"] >= 2 and (each["d"] or not is_ratio) for each in pair)]
    if not full:
        return None
    theta = 0.0 if is_ratio else theta_of(full)
    strata: tuple[list[tuple[int, Mean]], list[tuple[int, Mean]]] = ([], [])
    for pair in full:
        number = pair[0]["n"] + pair[1]["n"]
        x_mean = (pair[0]["x"] + pair[1]["x"]) / number
        for place, sums in enumerate(pair):
            strata[place].append((number, ratio_of(sums) if is_ratio else mean_of(sums, theta, x_mean)))
    control, treatment = map(stratified, strata)
    n = int(control["n"] + treatment["n"])
    u = n * tightest_u(alpha) / tally.tightest_at
    effect = effect_of(control, treatment, n, n - 2, u, alpha)
    valued = [sum(each["n"] for each in sums.values()) for sums in (first, second)]
    assigned = [sum(units[one] for units in tally.units.values()) for one in (0, arm)]
    return {
        "control": control,
        "treatment": treatment,
        "effect": effect,
        "relative": relative_interval(control, treatment, t_radius(n - 2, u, alpha)),
        "is_better": is_better(effect, goal, alpha),
        "answered": [a / b for a, b in zip(valued, assigned, strict=True)] if all(assigned) else None,
    }


def is_better(effect: dict[str, Any], goal: str | None, alpha: float) -> bool | None:
    """Tell whether a proven effect is in the direction of the goal; None where nothing is proven."""
    is_proven = effect["log_e"] >= -math.log(alpha)
    return (effect["effect"] > 0) == (goal == "increase") if goal is not None and is_proven else None


def tightest_u(alpha: float) -> float:
    """Return the u for which an interval of level alpha is tightest."""
    u = 1.0
    for _ in range(200):
        u = -2 * math.log(alpha) + math.log1p(u)
    return u


def t_radius(degrees: int, u: float, alpha: float) -> float:
    """Return the half width, in standard errors, of an interval that holds at any number of looks.

    degrees: degrees of freedom. u: the variance of the mixture of effects, in units of the squared standard error.
    alpha: the error level.
    """
    if degrees < 1 or u <= 0:
        return math.inf
    r = 1 / (1 + u)
    log_q = (math.log(r) + 2 * math.log(alpha)) / (degrees + 1)
    q = math.exp(log_q)
    return math.sqrt(degrees * -math.expm1(log_q) / (q - r)) if q > r else math.inf


def t_log_e(t: float, degrees: int, u: float) -> float:
    """Return the logarithm of the evidence of a t statistic against there being no effect.

    degrees: degrees of freedom. u: the variance of the mixture of effects, in units of the squared standard error.
    """
    if degrees < 1:
        return 0.0
    r, ratio = 1 / (1 + u), t * t / degrees
    return (math.log(r) + (degrees + 1) * (math.log1p(ratio) - math.log1p(r * ratio))) / 2


def relative_interval(control: Mean, treatment: Mean, radius: float) -> dict[str, float] | None:
    """Return the interval of a difference as a part of the control's mean; None where the mean may be 0."""
    a = control["mean"] ** 2 - radius**2 * control["variance"]
    if not math.isfinite(radius) or a <= 0 or control["mean"] < 0:
        return None
    middle = control["mean"] * treatment["mean"]
    root = math.sqrt(max(0.0, middle**2 - a * (treatment["mean"] ** 2 - radius**2 * treatment["variance"])))
    low, high = sorted(((middle - root) / a - 1, (middle + root) / a - 1))
    return {"low": low, "high": high}


def log_e(counts: list[int], shares: list[float], k: float) -> float:
    """Return the logarithm of the evidence against counts having been split by these shares.

    k: the concentration of the Dirichlet prior around the shares.
    """
    if any(count for count, share in zip(counts, shares, strict=True) if share <= 0):
        return math.inf
    both = [(count, share) for count, share in zip(counts, shares, strict=True) if share > 0]
    each_arm = (math.lgamma(k * p + count) - math.lgamma(k * p) - count * math.log(p) for count, p in both)
    return sum(each_arm) - math.lgamma(k + sum(count for count, _ in both)) + math.lgamma(k)


def srm_log_e(epochs: list[tuple[list[int], list[float]]]) -> float:
    """Return the logarithm of the evidence against the declared split of units."""
    logs = [math.fsum(log_e(counts, shares, k) for counts, shares in epochs) for k in (100.0, 1_000.0, 10_000.0)]
    highest = max(logs)
    if math.isinf(highest):
        return highest
    return highest + math.log(math.fsum(math.exp(each - highest) for each in logs) / len(logs))


def errors_verdict(tally: Tally, metric: str, arm: int) -> tuple[str, float]:
    """Return whether an arm has more errors than the control, and the logarithm of the evidence."""
    pairs = []
    for epoch, shares in tally.shares.items():
        a, b = shares[0], shares[arm]
        if a > 0 and b > 0:
            failed = [tally.sums.get((metric, one), {}).get(epoch, {"y": 0})["y"] for one in (0, arm)]
            pairs.append((failed, [a / (a + b), b / (a + b)]))
    found = math.fsum(log_e(failed, shares, 10.0) for failed, shares in pairs)
    more = sum(failed[1] - sum(failed) * shares[1] for failed, shares in pairs) > 0
    return ("harmed" if more and found >= -math.log(GUARDRAIL_ALPHA) else "unclear"), found


def of_equal_weights(export: dict[str, Any], arm: int) -> dict[str, Any]:
    """Return the export without the epochs in which the arm and the control have different shares."""
    shares = {epoch: each for epoch, each in export["shares"].items() if math.isclose(each[0], each[arm])}
    rows = {name: [row for row in export[name] if str(row[1]) in shares] for name in ("units", "sums", "times")}
    return {**export, "shares": shares, **rows}


def interval_verdict(relative: dict[str, float] | None, goal: str, margin: float) -> str:
    """Return whether a relative interval proves harm beyond the margin, or safety within."""
    if relative is None:
        return "unclear"
    low, high = relative["low"], relative["high"]
    least, most = (low, high) if goal == "decrease" else (-high, -low)
    return "harmed" if least > margin else "safe" if most < margin else "unclear"


def e_bh(log_es: list[float], alpha: float) -> list[int]:
    """Return the indexes of the hypotheses that the e-Benjamini-Hochberg procedure rejects."""
    order, rejected = sorted(range(len(log_es)), key=lambda index: -log_es[index]), 0
    for k, index in enumerate(order, 1):
        if log_es[index] + math.log(k / len(order)) >= -math.log(alpha) - 1e-12:
            rejected = k
    return sorted(order[:rejected])


def quantiles_of(tally: Tally, about: dict[str, Any], arm: int, alpha: float) -> dict[str, Any]:
    """Return the intervals of a quantile for an arm, for the control, and for their difference."""
    both = {epoch: each for epoch, each in tally.shares.items() if each[0] and each[arm]}
    newest = both[max(both)] if both else []
    alike = {epoch for epoch, each in both.items() if math.isclose(each[0] * newest[arm], each[arm] * newest[0])}
    k = tally.tightest_at / 2 / tightest_u(alpha / 2)
    found = []
    for one in (0, arm):
        counts = [0] * (NUM_EDGES + 1)
        for epoch, own_arm, metric, bucket, number in tally.times:
            if metric == about["name"] and own_arm == one and epoch in alike:
                counts[bucket] += number
        found.append(quantile_interval(counts, about["quantile"], k, alpha / 2))
    control, treatment = found
    difference = {"low": treatment["low"] - control["high"], "high": treatment["high"] - control["low"]}
    return {"control": control, "treatment": treatment, "difference": difference}


def quantile_interval(counts: list[int], p: float, k: float, alpha: float) -> dict[str, float]:
    """Return the level-alpha interval and the estimate of the p-quantile in milliseconds, from units by bucket of time.

    k: the concentration of the Dirichlet prior around the shares.
    """
    total = sum(counts)
    if not total:
        return {"low": 0.0, "high": math.inf, "estimate": math.nan}

    def last_held(held: int, refuted: int) -> int:
        """Return the last number of units below the quantile, from `held` to `refuted`, that the test allows."""
        while abs(held - refuted) > 1:
            middle = (held + refuted) // 2
            is_held = log_e([middle, total - middle], [p, 1 - p], k) < -math.log(alpha)
            held, refuted = (middle, refuted) if is_held else (held, middle)
        return held

    ranks = list(accumulate(counts))  # the bucket of a unit is the first of which the rank is reached
    edges = [0.0, *EDGES_MS, math.inf, math.inf]  # above no bucket, above each, and above ranks that no unit has
    centre = min(total, max(0, round(total * p)))
    low, high = last_held(centre, -1), last_held(centre, total + 1)
    return {
        "low": edges[bisect_left(ranks, low)] if low >= 1 else 0.0,
        "high": edges[bisect_left(ranks, high + 1) + 1],
        "estimate": edges[bisect_left(ranks, max(1, math.ceil(total * p))) + 1],
    }


def quantile_verdict(found: dict[str, Any], margin: float) -> str:
    """Return whether the intervals of two quantiles prove harm beyond the margin, or safety within."""
    if found["treatment"]["low"] > found["control"]["high"] * (1 + margin):
        return "harmed"
    return "safe" if found["treatment"]["high"] < found["control"]["low"] * (1 + margin) else "unclear"


def read_export(arguments: list[str]) -> dict[str, Any]:
    """Return the export that the arguments of the command name.

    Raises SystemExit: when the file is missing or wrong; the error says why in one line.
    """
    if len(arguments) != 1:
        sys.exit("usage: recompute.py ANALYSIS.json (of `lorikeet experiment export NAME analysis`)")
    name = arguments[0]
    try:
        export = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        sys.exit(f"{name}: {error.strerror or error}")
    except ValueError:
        export = None
    if not isinstance(export, dict) or not {"definition", "sums", "shares", "metrics"} <= export.keys():
        sys.exit(f"{name}: not the export `analysis` of an experiment")
    return export


if __name__ == "__main__":
    exported = read_export(sys.argv[1:])
    shown = recompute(exported) | {"ages": recompute_ages(exported), "segments": segments_of(exported)}
    sys.stdout.write(json.dumps(shown, indent=2) + "\n")
