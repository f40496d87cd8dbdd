"""Experiments as pure decisions: the arm of each unit, the results at any look, changes, and harm that ends one.

- `assignment`, `allocation`: units to arms by keyed hashes; weights, coverage, epochs, layers
- `sums`: the data that tables keep and results are made of
- `exposure`, `treatment`: what a request gets and tells of it
- `feedback`: votes, ids of replies that votes name, and what votes come to with the help of a judge
- `statistics`, `quantiles`: tests and intervals that hold at every look, families of metrics, judges
- `effects`, `sizes`: effects of arms, sizes before the start
- `definition`, `metrics`, `states`: what an experiment is, may measure, and may become
- `guardrails`, `results`, `ages`, `segments`: what stops it, and what one look shows, also by days and by segment

    slots = free_slots(experiment.layer, others, experiment.coverage)
    split = first_split(seed, layer_seed, slots, [arm.weight for arm in experiment.arms])
    assigned = assign(split, "ann@example.com", unit_digest(project_key, "ann@example.com"))
    tally = Tally({1: arm_shares(split, 1, 2)}, units=units_rows, sums=sums_rows, days=8)
    results_of(experiment, tally, {"thumbs_up": "mean"}).comparisons[0].effect.interval
"""
