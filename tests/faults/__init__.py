"""Faults that users of other clients met, and what guards against each of them and its kin here.

The tests of this folder go through what an application has: the official SDK over an `Orchestra`, or its own
client, against a scripted provider. Each names where the fault was reported. Where another test holds the fault
down exactly, it is named here instead (``area/file::test``, under ``tests/``).

Budgets and admission:

- BerriAI/litellm#5783:
  test_admission::test_a_burst_is_charged_before_it_is_sent
- BerriAI/litellm#18730:
  test_admission::test_what_calls_will_use_is_reserved_and_what_they_used_counts,
  ::test_of_parallel_calls_only_those_go_whose_estimates_fit_together
- vitalops/datatune#49:
  test_admission::test_a_job_meets_the_gate_that_single_calls_meet
- shobrook/openlimit#8:
  test_admission::test_a_call_larger_than_the_bucket_goes_into_debt; what can never fit:
  budget/test_pool::test_what_can_never_fit_is_refused
- openai/openai-python#605:
  test_admission::test_several_answers_to_one_prompt_are_charged_as_such
- bespokelabsai/curator#386:
  test_admission::test_what_a_provider_takes_by_the_bound_and_gives_back_is_used_again (to the per cent:
  budget/test_admission_hour::test_estimates_that_are_wrong_by_three_either_way_...)
- BerriAI/litellm#32865:
  test_admission::test_a_picture_is_not_counted_by_its_length
- BerriAI/litellm#17664:
  test_admission::test_the_prompt_counts
- BerriAI/litellm#34732, garrytan/gbrain#4365:
  dispatch/test_dollars::test_of_ten_calls_at_once_three_reach_the_provider_and_the_rest_are_told,
  budget/test_dollars::test_an_overshoot_is_one_misestimate_at_most
- BerriAI/litellm#26672:
  dispatch/test_dollars::test_however_the_cap_is_set_it_holds,
  faults/test_admission::test_a_limit_holds_whatever_it_is_read_from,
  ::test_an_account_has_one_limit_whatever_it_is_called_by
- langchain-ai/langchain#29425:
  test_admission::test_every_surface_keeps_the_limit_of_calls_at_once
- pydantic/pydantic-ai#8240:
  test_admission::test_all_surfaces_together_keep_one_limit
- pydantic/pydantic-ai#6877:
  test_admission::test_a_limit_that_is_none_is_refused_when_it_is_set
- run-llama/llama_index#21603, langchain-ai/langchain PR 26914:
  test_admission::test_waiting_for_admission_never_blocks_the_loop; five hundred at once:
  budget/test_pool::test_the_loop_never_stalls_while_many_contend
- trailofbits/buttercup#4:
  test_admission::test_at_the_limit_calls_wait_their_turn_and_none_is_dropped,
  ::test_the_overflow_of_a_bounded_queue_fails_at_once_and_says_so

Classes, priority, fairness:

- BerriAI/litellm#6867:
  test_classes::test_people_go_before_all_bulk_that_waits_for_a_slot,
  ::test_people_go_before_all_bulk_that_waits_for_the_refill
- BerriAI/litellm#20059:
  test_classes::test_those_who_gave_up_are_out_of_the_queue; a thousand, and memory:
  budget/test_pool::test_a_thousand_timed_out_waiters_leave_nothing_behind
- BerriAI/litellm#31830:
  test_classes::test_under_more_load_than_fits_people_hardly_wait_and_bulk_gets_the_rest; for twenty
  minutes: budget/test_admission_hour::test_load_of_one_and_a_half_times_...
- meridianlabs-ai/inspect_scout#495:
  test_classes::test_bulk_does_not_eat_the_quota_of_others_on_the_account
- can1357/oh-my-pi#3749:
  test_classes::test_parents_hold_no_slot_while_their_children_wait_for_one
- zed-industries/zed PR 47494:
  test_classes::test_a_stream_that_was_read_holds_nothing_though_it_is_kept

Refusals, Retry-After, retries:

- HKUDS/nanobot#2760, mpfaffenberger/code_puppy PR 317:
  test_retries::test_tries_are_not_multiplied_by_the_layers,
  ::test_what_the_sdk_is_handed_says_that_it_was_tried_enough
- HKUDS/nanobot#2763:
  dispatch/test_retries::test_every_form_of_retry_after_is_a_floor
- earendil-works/pi#9595:
  test_retries::test_no_layer_comes_back_before_the_server_said
- tinyhumansai/openhuman#6504:
  test_retries::test_the_demanded_wait_reaches_the_application
- anthropics/anthropic-sdk-typescript#357:
  test_retries::test_of_several_limits_the_one_that_is_spent_tells_the_wait
- BaseIntelligence/bounty-challenge#10752:
  providers/test_hints::test_every_form_is_read, ::test_what_means_nothing_is_unknown_not_zero,
  ::test_no_text_breaks_it_...
- NousResearch/hermes-agent PR 96005:
  providers/test_hints::test_small_numbers_are_relative
- langchain-ai/langchainjs#1929:
  test_retries::test_a_spent_account_is_asked_once_and_people_are_told_at_once
- career-ops-hq/career-ops#875:
  jobs/test_manager::test_a_spent_account_stops_the_job_and_costs_no_line
- matt-house-e/accrue#44:
  test_retries::test_an_error_of_the_request_is_not_tried_again_under_any_sdk,
  ::test_those_who_are_refused_together_come_back_apart
- BerriAI/litellm#3646:
  dispatch/test_routes::test_when_all_cool_a_call_waits_for_the_first_to_return_...
- UKGovernmentBEIS/inspect_ai PR 5138:
  test_retries::test_hints_delay_calls_and_not_the_controller
- HKUDS/nanobot#4038, aden-hive/hive#5923, NuGuardAI/nuguard#455:
  test_retries::test_before_its_first_content_a_stream_is_tried_again_unseen; after content:
  transports/test_openai_sdk::test_a_break_after_content_is_a_typed_error
- endolith/open-interpreter#291:
  test_retries::test_a_tool_call_is_never_put_together_of_two_tries

Streams, cancellation, leaks:

- ferro-labs/ai-gateway#281:
  test_streams::test_what_a_stream_used_is_known_though_nobody_asked_for_it
- PostHog/posthog-js PR 4664:
  test_streams::test_what_a_cancelled_call_used_is_unknown_and_not_nothing,
  ::test_what_never_left_us_is_not_spent
- Wei-Shaw/sub2api#4408:
  dispatch/test_hedging::test_both_are_charged, ::test_the_second_answer_counts_where_the_first_is_late,
  ::test_the_share_holds_however_late_they_are
- BerriAI/litellm#27955:
  test_streams::test_streams_cancelled_at_random_leave_the_limit_whole,
  ::test_streams_that_are_dropped_are_found_while_others_wait; five hundred:
  budget/test_pool_cancellation::test_five_hundred_calls_cancelled_at_random_...; a killed process:
  budget/test_shared_processes::test_the_share_of_a_process_...
- openai/openai-python#763:
  test_streams::test_a_stream_that_was_read_gives_its_connection_back
- ikawrakow/ik_llama.cpp#1929:
  test_streams::test_cancelling_a_queued_call_touches_only_that_call,
  ::test_cancelling_the_call_that_lets_others_in_stops_none_of_them,
  ::test_a_queued_bulk_call_that_is_cancelled_is_never_sent
- matt-house-e/accrue#47:
  jobs/test_awaited::test_where_all_callers_go_later_the_batch_goes_on_for_the_next_run; repeated ids:
  jobs/test_store::test_a_repeated_custom_id_is_found_through_the_ledger

Loops, threads, processes, pools, memory:

- BerriAI/litellm#7667:
  test_loops::test_one_sdk_client_serves_one_loop_after_another
- langchain-ai/langchain#35783, openai/openai-python#769:
  test_loops::test_loops_in_threads_share_one_client_and_one_rate
- bytedance/deer-flow PR 4294:
  test_loops::test_a_limit_of_calls_at_once_is_not_one_a_loop; with a synchronous caller:
  budget/test_pool_threads::test_two_loops_and_a_thread_share_three_slots
- openai/openai-python#821, #2539:
  test_loops::test_slow_calls_never_time_out_for_want_of_a_connection
- openai/openai-python#1195:
  test_loops::test_time_in_the_queue_is_no_time_of_the_call
- Tiendil/feeds.fun#539, apecloud/ApeRAG PR 1809:
  test_loops::test_a_long_job_is_not_a_task_a_line,
  jobs/test_manager::test_the_first_answers_come_before_the_last_request,
  ::test_many_requests_in_flat_memory
- bespokelabsai/curator PR 141:
  test_loops::test_a_program_that_closes_nothing_ends_at_once_and_quietly,
  ::test_closing_from_another_loop_and_twice_harms_nobody

Provider batches:

- warmbly/warmbly PR 333, autobatcher 0.12.0 (an expired batch's finished lines are lost):
  jobs/test_carrier::test_what_was_done_before_the_end_counts_and_the_rest_is_sent_again
- ProjectTech4DevAI/kaapi-backend#723, openai/openai-cookbook#1564, autobatcher 0.12.0 (no cause is told):
  jobs/test_carrier::test_an_error_file_only_gives_each_line_its_own_error; as the SDK's own error:
  jobs/test_parking::test_a_refused_line_is_the_sdks_own_typed_error; ids that are null or empty:
  providers/test_batch_forms::test_ids_that_are_null_or_empty_are_none
- bespokelabsai/curator#276, edubruell/tidyllm#37:
  jobs/test_carrier::test_results_are_known_by_their_ids
- googleapis/python-genai#1909, googleapis/js-genai#1207:
  providers/test_batch_forms::test_answers_of_gemini_without_a_key_belong_to_nobody
- openai/openai-python#2084, #1643:
  jobs/test_carrier_handing_in::test_no_more_is_queued_than_the_queue_holds,
  ::test_a_queue_that_others_fill_costs_no_attempt
- BerriAI/litellm PR 37539:
  jobs/test_carrier_handing_in::test_a_large_batch_takes_nothing_from_the_calls_of_a_minute
- CultivateLabs/raif PR 474:
  jobs/test_parking::test_a_killed_script_that_is_run_again_uploads_nothing_new; a job:
  jobs/test_carrier_handing_in::test_who_comes_after_a_crash_creates_nothing_twice
- safety-research/safety-tooling#43:
  there is one ledger and no cache beside it:
  jobs/test_awaited::test_named_answers_stay_and_others_are_handed_over_once
- bespokelabsai/curator PR 585:
  jobs/test_diversion::test_progress_counts_what_is_in_the_ledger
- UKGovernmentBEIS/inspect_ai (a poll for ever on a status that is new):
  jobs/test_carrier::test_a_status_that_nobody_knows_is_said_and_waited_for_up_to_the_deadline
- UKGovernmentBEIS/inspect_ai 0.3.285 (a missing line's caller waits for ever):
  jobs/test_carrier::test_a_line_of_which_nothing_is_said_is_not_a_failed_one
- autobatcher 0.12.0 (one caller is cancelled during the upload, and no batch is made for the others):
  jobs/test_awaited::test_a_caller_who_goes_takes_nobody_along
- batchling 0.1.0a3 (a 503 on one poll fails all riders):
  jobs/test_carrier::test_polls_that_fail_delay_nothing_but_the_look
- batchling 0.1.0a3 (an SDK that it does not intercept pays the full price):
  jobs/test_parking::test_five_hundred_calls_of_an_sdk_are_a_batch_or_two
- llmfleet 0.1.0 (batches one after another):
  jobs/test_carrier::test_each_of_several_batches_goes_its_own_way
- curator 0.1.31 (the cost of batches stays 0):
  jobs/test_diversion::test_a_batch_stuck_at_sixty_per_cent_and_ninety_seconds
"""
