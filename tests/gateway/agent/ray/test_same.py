"""The promises of agents about engines on their own host, held by the same tests for engines in a Ray cluster."""

from __future__ import annotations

from tests.gateway.agent import test_agent, test_one_at_a_time
from tests.gateway.agent.ray.nodes import needs_ray

pytestmark = needs_ray

SAME = [
    test_agent.test_a_pool_gets_its_replicas_and_an_end_on_request_leaves_no_engine,
    test_agent.test_more_and_fewer_replicas_leave_the_oldest_one_untouched,
    test_agent.test_a_killed_engine_is_started_again_as_the_next_generation,
    test_agent.test_a_replica_that_does_not_answer_is_not_ready_until_it_does,
    test_agent.test_the_end_of_an_engine_is_written_at_once,
    test_agent.test_an_engine_that_never_answers_fails_when_its_time_is_over,
    test_agent.test_a_crash_loop_backs_off_and_says_why,
    test_agent.test_an_engine_that_can_never_run_ends_a_start_that_waits_for_it,
    test_agent.test_a_change_of_revision_is_switched_to_when_it_is_ready_and_the_old_one_goes,
    test_agent.test_a_revision_that_fails_goes_back_to_the_one_that_serves,
    test_agent.test_an_engine_that_nobody_is_connected_to_ends_by_itself,
    test_agent.test_a_replica_is_replaced_by_another_one_on_request,
    test_agent.test_a_draining_replica_ends_what_it_runs_before_it_is_stopped,
    test_agent.test_a_replica_that_never_ends_what_it_runs_is_stopped_when_its_time_is_over,
    test_agent.test_a_removed_pool_leaves_nothing,
    test_one_at_a_time.test_engines_serve_on_when_their_agent_is_killed_and_the_next_one_adopts_them,
    test_one_at_a_time.test_an_agent_that_wakes_up_too_late_ends_and_touches_nothing,
    test_one_at_a_time.test_a_second_agent_waits_while_the_first_one_lives,
]
globals().update({each.__name__: each for each in SAME})
