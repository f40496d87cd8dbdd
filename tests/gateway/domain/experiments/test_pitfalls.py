"""Known pitfalls of experiments on live traffic, and the tests that guard against each; a renamed or removed test
fails here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]
DOMAIN, TABLES, ROUTES = "gateway/domain/experiments", "gateway/experiments", "gateway/routing"
ADMIN, VOTES = "gateway/admin/experiments", "gateway/evaluation"

PITFALLS: dict[str, tuple[str, ...]] = {
    "peeking": (
        f"{DOMAIN}/test_watched.py::test_watching_makes_no_false_alarms",
        f"{TABLES}/test_aa.py::test_sums_of_the_tables_equal_the_sums_of_the_outcomes",
    ),
    "asymptotics at ten units": (f"{DOMAIN}/test_watched.py::test_the_first_units_make_no_false_alarms",),
    "the unit of a metric changes its verdict": (
        f"{DOMAIN}/test_formulas.py::test_an_effect_outside_its_interval_is_significant_in_any_unit_of_the_metric",
    ),
    "peeking within units whose outcomes grow": (
        f"{DOMAIN}/test_watched.py::test_outcomes_count_once_their_window_has_closed",
        f"{DOMAIN}/test_units.py::test_events_after_the_window_or_before_the_first_exposure_are_left_out",
    ),
    "units move when weights change": (
        f"{DOMAIN}/test_assignment.py::test_no_exposed_unit_ever_moves",
        f"{DOMAIN}/test_assignment.py::test_weights_change_by_the_least_moves",
        f"{ROUTES}/test_experiment_changes.py::test_units_that_were_exposed_keep_their_arm_under_new_weights",
    ),
    "one hash for coverage and arm, or for all experiments": (
        f"{DOMAIN}/test_assignment.py::test_coverage_tells_nothing_about_the_arm",
        f"{DOMAIN}/test_assignment.py::test_experiments_are_independent_of_each_other",
    ),
    "the hash changes in a release": (
        f"{DOMAIN}/test_assignment.py::test_buckets_are_those_of_every_release",
        f"{DOMAIN}/test_assignment.py::test_the_published_test_vectors_of_assignment_hold",
    ),
    "assignment by request or by key": (
        f"{ROUTES}/test_experiments.py::test_one_unit_has_one_arm_everywhere",
        f"{ROUTES}/test_experiments.py::test_a_unit_comes_from_one_source_alone",
    ),
    "a placeholder or a program that is many users": (
        f"{ROUTES}/test_experiment_health.py::test_a_placeholder_that_many_share_is_one_unit_and_named_by_its_digest",
        f"{TABLES}/test_bookkeeper.py::test_health_names_busy_units_and_what_is_not_analysed",
    ),
    "requests taken for units": (
        f"{DOMAIN}/test_watched.py::test_intervals_over_requests_are_wrong_and_those_over_units_are_right",
    ),
    "a mean of ratios for a ratio of means": (
        f"{DOMAIN}/test_formulas.py::test_ratios_are_of_sums_and_no_mean_of_ratios",
    ),
    "the recorded arm is not the served one": (
        "e2e/test_experiment_arms.py::test_the_recorded_arm_is_the_served_arm",
        "faults/test_experiment_kills.py::test_arms_units_and_costs_are_those_of_the_ledger_whoever_is_killed",
    ),
    "the treatment is not delivered": (
        f"{ROUTES}/test_experiment_treatments.py::test_what_is_open_is_set_and_what_is_given_only_if_the_arm_replaces",
        f"{ROUTES}/test_experiment_health.py::test_clients_that_always_set_what_the_arm_sets_are_told_of",
    ),
    "retries and replays": (
        f"{ROUTES}/test_experiment_changes.py::test_a_replay_is_the_same_reply_and_no_exposure",
        f"{ROUTES}/test_experiment_refusals.py::test_an_engine_that_is_full_is_asked_again_by_the_same_arm",
    ),
    "an arm's version goes": (
        f"{ROUTES}/test_experiment_refusals.py::test_an_arm_that_is_gone_is_refused_and_no_other_arm_answers",
        f"{ADMIN}/test_life.py::test_what_an_arm_needs_stays_until_it_is_decided",
    ),
    "failures are left out": (f"{DOMAIN}/test_formulas.py::test_failures_count_as_failures",),
    "refusals are missing": (
        f"{DOMAIN}/test_results.py::test_refusals_fire_their_own_guardrail_while_the_sample_ratio_holds",
        f"{ROUTES}/test_experiment_refusals.py::test_refusals_of_a_unit_are_noted_with_its_arm",
    ),
    "who answers differs between arms": (
        f"{DOMAIN}/test_results.py::test_a_different_answer_rate_is_shown_beside_the_effect",
    ),
    "feedback that is repeated": (f"{VOTES}/test_kills.py::test_the_same_vote_hundreds_of_times_is_one",),
    "feedback that is lost or early": (
        f"{VOTES}/test_kills.py::test_a_gateway_killed_after_its_answer_has_lost_nothing",
        f"{VOTES}/test_feedback.py::test_a_vote_before_any_row_of_its_request_is_taken_by_a_signed_id",
    ),
    "feedback of strangers": (
        f"{VOTES}/test_whose.py::test_foreign_made_up_and_malformed_ids_are_one_answer",
        f"{VOTES}/test_whose.py::test_times_tell_no_foreign_id_from_a_made_up_one",
    ),
    "events that are late or out of order": (
        f"{DOMAIN}/test_units.py::test_any_order_of_events_gives_the_sums_of_a_recount",
        f"{TABLES}/test_books.py::test_any_order_of_events_gives_the_same_sums",
        f"{TABLES}/test_books.py::test_events_after_the_end_of_a_window_change_closed_sums",
    ),
    "Simpson's paradox in ramps": (
        f"{DOMAIN}/test_formulas.py::test_a_ramp_is_no_effect",
        f"{DOMAIN}/test_watched.py::test_ramps_make_no_false_alarms",
    ),
    "sample ratios by a repeated fixed test, or of requests": (
        f"{DOMAIN}/test_watched.py::test_samples_out_of_ratio_are_found_and_no_others",
        f"{DOMAIN}/test_formulas.py::test_uneven_weights_are_no_alarm",
        f"{TABLES}/test_bookkeeper.py::test_units_of_several_epochs_are_judged_by_their_own_shares",
    ),
    "the prompt cache of a smaller arm is colder": (
        f"{DOMAIN}/test_cold_caches.py::test_a_small_arm_of_the_same_adapter_looks_slower_and_an_equal_one_does_not",
        f"{DOMAIN}/test_cold_caches.py::test_times_that_a_cache_changes_are_compared_under_equal_weights_alone",
        f"{ADMIN}/test_findings.py::test_health_says_that_times_of_unequal_arms_are_not_compared",
    ),
    "an adapter that is not loaded yet": (
        f"{ADMIN}/test_life.py::test_arms_are_pinned_at_the_start",
        f"{ADMIN}/test_life.py::test_an_arm_that_no_engine_loads_stops_the_start",
    ),
    "arms that share a batch": (
        f"{TABLES}/test_times.py::test_an_arm_that_slows_the_other_is_known_by_the_time_of_the_engine",
    ),
    "times of what was finished alone": (
        f"{TABLES}/test_times.py::test_clients_that_give_up_do_not_make_their_arm_faster",
    ),
    "twenty metrics": (
        f"{DOMAIN}/test_watched.py::test_twenty_metrics_make_no_more_false_discoveries",
        f"{DOMAIN}/test_results.py::test_secondary_metrics_are_filtered_together_and_primary_ones_share_their_level",
    ),
    "the winner's curse": (f"{ADMIN}/test_findings.py::test_results_have_intervals_verdicts_and_a_conclusion",),
    "a judge that is biased": (
        f"{DOMAIN}/test_watched.py::test_a_biased_judge_biases_nothing",
        f"{DOMAIN}/test_formulas.py::test_a_judge_shortens_what_humans_say_without_bias",
        f"{DOMAIN}/test_judging.py::test_a_judge_that_follows_the_order_of_answers_gives_no_preference",
        f"{DOMAIN}/test_judged.py::test_a_judge_that_is_kinder_to_one_arm_makes_no_effect_and_hides_none",
        f"{TABLES}/test_judges.py::test_a_judge_that_is_kinder_to_an_arm_makes_no_effect_through_the_tables",
        f"{VOTES}/test_judges.py::test_a_judge_votes_about_every_reply_and_people_about_a_fifth",
    ),
    "deletion": (
        f"{TABLES}/test_forget.py::test_a_forgotten_unit_leaves_no_digest_and_no_part_of_a_sum",
        f"{TABLES}/test_fleet.py::test_a_unit_can_be_read_nowhere_and_once_forgotten_not_even_its_digest",
        f"{TABLES}/test_purging.py::test_units_of_one_project_alone_go_before_it_is_purged",
        f"{ADMIN}/test_findings.py::test_a_purged_project_leaves_nothing_of_its_experiments",
        f"{ADMIN}/test_backups.py::test_a_restored_installation_assigns_and_shows_as_before",
    ),
    "few units": (
        f"{DOMAIN}/test_formulas.py::test_days_until_an_effect_is_found_are_said_beforehand",
        f"{ADMIN}/test_findings.py::test_a_preview_says_how_long_an_experiment_takes",
    ),
    "the cycle of a week, and novelty": (
        f"{DOMAIN}/test_results.py::test_nothing_is_decided_before_its_days_nor_with_a_wrong_sample_ratio",
        f"{TABLES}/test_ages.py::test_an_effect_that_fades_by_day_is_shown_as_fading",
        f"{TABLES}/test_ages.py::test_units_that_did_nothing_on_a_day_count_as_nothing",
        f"{TABLES}/test_ages.py::test_a_decision_waits_for_its_days_however_clear_the_effect",
        f"{DOMAIN}/test_ages.py::test_days_without_an_effect_make_no_false_trend",
    ),
    "another tenant": (
        f"{DOMAIN}/test_assignment.py::test_digests_of_two_projects_differ",
        f"{VOTES}/test_flags.py::test_another_projects_flag_is_answered_like_one_that_does_not_exist",
        f"{VOTES}/test_whose.py::test_another_projects_feedback_is_answered_like_one_that_does_not_exist",
    ),
}
"""The tests by pitfall, as files below the folder of tests and functions in them. Weights that follow results, whose
means are biased, are not built."""


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_each_pitfall_has_tests_that_are_there(pitfall: str) -> None:
    assert PITFALLS[pitfall]
    for named in PITFALLS[pitfall]:
        path, _, function = named.partition("::")
        tree = ast.parse((TESTS / path).read_text())
        assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
