//! Each bound is driven to its end by a test.
//!
//! This says by which. What is looked at there is memory (or what is kept of it), connections, and whether
//! others are served meanwhile, as far as the bound is about them. A bound that nobody outside can reach,
//! or whose end is nothing but a wait, says so instead, and why.

use super::manual_list::{in_sources, rows};
use std::collections::{BTreeMap, BTreeSet};

/// How a bound is known to hold.
pub(super) enum Held {
    /// By this test.
    By(&'static str),
    /// It is not driven to its end, for this reason.
    Not(&'static str),
}

use Held::{By, Not};

/// Key or `file` and constant, and what holds it.
pub(super) const BOUNDS: &[(&str, Held)] = &[
    ("limits.body_bytes", By("a_body_of_unknown_length_is_refused_once_it_is_over_the_limit")),
    ("limits.body_memory", By("unfinished_bodies_share_one_limit_and_block_no_other_client")),
    ("limits.header_bytes", By("a_head_over_the_limit_is_refused")),
    ("limits.headers", By("a_request_over_http_2_may_have_no_more_headers_than_the_limit")),
    (
        "limits.pending_connections",
        By("one_address_has_so_many_connections_without_a_complete_request_and_no_more"),
    ),
    ("limits.connections", By("more_connections_than_the_limit_wait_for_one_to_close")),
    (
        "limits.upstream_connections",
        By("calls_beyond_the_connections_to_servers_wait_and_the_limit_is_named"),
    ),
    ("limits.calls", By("calls_over_the_limit_are_shed_and_permits_are_returned")),
    ("limits.streams", By("more_calls_on_one_connection_than_it_may_carry_wait_at_their_client")),
    ("limits.depth", By("a_message_too_large_or_too_deep_never_reaches_the_server")),
    ("limits.sessions", By("at_the_limit_of_sessions_calls_wait_for_one")),
    ("limits.task_sessions", By("the_sessions_of_tasks_are_bounded_and_beyond_them_a_task_counts_as_a_call")),
    ("limits.queue", By("the_session_queue_is_bounded_and_a_cancelled_call_frees_its_entry")),
    ("limits.messages", By("endless_pings_take_a_bounded_number_of_connections_and_delay_no_call")),
    ("limits.identities", By("the_least_recently_used_identities_are_evicted")),
    ("limits.identity_bytes", By("identities_are_bounded_by_what_they_keep_too")),
    ("limits.result_bytes", By("an_answer_over_the_limit_is_refused_and_the_call_cancelled")),
    ("limits.departed", By("responses_read_for_disconnected_clients_are_bounded")),
    ("limits.client_sessions", By("there_are_so_many_sessions_and_those_that_have_been_quiet_make_room")),
    ("limits.tasks", By("at_the_quota_of_all_tasks_calls_stay_synchronous")),
    ("limits.tasks_per_principal", By("at_the_callers_quota_calls_stay_synchronous_and_nothing_is_evicted")),
    ("limits.stored_bytes", By("what_does_not_fit_is_refused_and_changes_nothing_however_many_come_at_once")),
    ("limits.stored_bytes_per_principal", By("one_caller_cannot_use_up_the_quota_of_all")),
    ("limits.stored_result_bytes", By("a_result_over_the_limit_fails_its_task_and_the_limit_is_named")),
    ("limits.polls_per_second", By("a_caller_that_polls_too_often_gets_an_error_with_the_limit")),
    ("limits.misses_per_minute", By("a_caller_that_guesses_ids_gets_an_error_with_the_limit")),
    ("limits.listens_per_principal", By("a_caller_may_have_so_many_streams_to_listen_on")),
    ("limits.poll_interval_min", By("a_poll_interval_stays_within_its_bounds")),
    ("limits.poll_interval_max", By("a_poll_interval_stays_within_its_bounds")),
    ("timeouts.connect", By("a_connection_that_does_not_come_about_has_its_own_error")),
    ("timeouts.first_byte", By("first_byte_and_idle_limit_what_is_not_a_call")),
    ("timeouts.idle", By("first_byte_and_idle_limit_what_is_not_a_call")),
    ("timeouts.call", By("a_call_as_a_whole_is_limited_and_cancelled_then")),
    ("timeouts.queue", By("a_call_over_the_queue_timeout_gets_an_error_with_the_limit")),
    ("timeouts.idle_session", By("an_idle_session_expires_after_a_day_unless_a_request_is_in_flight")),
    ("timeouts.read_headers", By("a_connection_that_does_not_get_to_a_request_is_closed")),
    ("timeouts.read_body", By("a_body_that_does_not_arrive_is_abandoned")),
    ("timeouts.idle_connection", By("an_idle_connection_is_closed_after_its_timeout")),
    ("timeouts.write", By("a_client_that_does_not_read_is_disconnected_and_an_idle_reader_is_not")),
    ("timeouts.keep_alive", By("a_long_silence_is_broken_by_comments_until_the_result")),
    // Clients.
    ("front/receive.rs TRUSTED_LENGTH", By("an_announced_body_takes_no_memory_before_it_arrives")),
    ("front/receive.rs SMALL_BODY", By("unfinished_bodies_share_one_limit_and_block_no_other_client")),
    ("front/dispatch.rs MAX_SHED_BODY", By("bodies_of_refused_requests_are_read_within_bounds")),
    ("front/call_permits.rs MAX_SHED_READS", By("bodies_of_refused_requests_are_read_within_bounds")),
    ("front/layers/access_entry.rs MAX_TARGET", By("a_log_line_is_bounded")),
    ("front/layers/access_entry.rs MAX_NAMED_MESSAGES", By("a_log_line_is_bounded")),
    ("telemetry/events.rs SHOWN", By("of_what_others_have_chosen_the_beginning_is_written")),
    ("dialect/ambiguity.rs SHOWN", By("methods_are_found_in_whatever_names_them")),
    ("dialect/ambiguity.rs SHOWN_OF_ONE", By("methods_are_found_in_whatever_names_them")),
    ("runtime/net.rs BACKLOG", Not("the system's: it refuses or delays what goes beyond")),
    ("runtime/pooled_timer.rs MAX_POOLED", By("a_thread_keeps_so_many_and_none_once_it_has_forgotten_them")),
    ("runtime/connection_limiter.rs RESERVED_PERMITS", By("what_is_said_in_passing_does_not_wait_for_calls")),
    ("runtime/clock.rs STEP_TOLERANCE", By("what_is_no_step_moves_nothing")),
    ("runtime/descriptors.rs RESERVE", By("the_descriptor_limit_is_raised_and_derived_limits_are_logged")),
    (
        "front/listener.rs STREAM_WINDOW",
        Not("told to the client; the HTTP/2 library ends a connection that goes beyond"),
    ),
    (
        "front/listener.rs CONNECTION_WINDOW",
        Not("told to the client; the HTTP/2 library ends a connection that goes beyond"),
    ),
    ("front/listener.rs CLOSE_TIMEOUT", By("a_silent_http_2_connection_is_closed_however_often_it_pings")),
    ("front/listener.rs PING_INTERVAL", Not("when a question is asked, which binds nobody")),
    (
        "front/connection.rs MAX_REMEMBERED",
        By("what_a_client_says_with_every_request_is_remembered_as_long_as_it_is_little"),
    ),
    ("front/connection.rs LINGER", By("a_client_that_sends_on_after_its_refusal_is_read_for_a_moment_only")),
    ("front/write_timeout.rs PORTION", By("a_peer_that_takes_a_little_now_and_then_gets_everything")),
    (
        "admin/server.rs CONNECTIONS",
        By("operators_have_so_many_connections_and_clients_are_served_beside_them"),
    ),
    ("admin/server.rs PROBES", By("connections_that_complete_no_request_keep_no_probe_waiting")),
    (
        "admin/metrics_listener.rs CONNECTIONS",
        By("connections_that_complete_no_request_keep_no_probe_waiting"),
    ),
    ("admin/listener.rs READ_PROBE", Not("a wait; each of the few connections ends after it")),
    (
        "front/half_closed.rs MAX_WITHHELD",
        By("a_client_that_ends_its_side_within_its_request_has_made_no_call"),
    ),
    ("admin/listener.rs READ_HEADERS", Not("a wait; each of the few connections ends after it")),
    ("admin/server.rs READ_BODY", Not("a wait; the request is refused after it")),
    ("admin/server.rs BODY_BYTES", By("an_unexpected_body_is_read_up_to_a_limit")),
    ("admin/listener.rs WRITE", By("a_client_of_events_that_does_not_read_is_let_go_and_harms_no_other")),
    ("admin/reload.rs QUEUE", Not("operators with the token, who wait their turn")),
    ("app/run.rs MAX_NAMES", Not("names in a line of the log")),
    (
        "config/config_files.rs MAX_DIGESTED",
        Not("what is behind it is not looked at; the files of keys are shorter"),
    ),
    ("admin/events.rs WATCHERS", By("event_streams_over_the_limit_are_refused_with_the_limit")),
    ("admin/events.rs TASKS", By("ten_thousand_tasks_are_shown_page_by_page")),
    ("admin/tasks.rs MOST", By("a_query_says_what_is_wanted_or_what_is_wrong_with_it")),
    ("admin/tasks.rs NAME", Not("a word of an error; the request itself is bounded")),
    ("proxy/operator_tasks.rs SCAN_LIMIT", By("ten_thousand_tasks_are_shown_page_by_page")),
    ("proxy/operator_tasks.rs MAX_CANDIDATES", Not("more digits name one of them")),
    ("proxy/operator_tasks.rs MAX_NAMES", Not("another name is looked for among the youngest tasks")),
    ("protocol/capability.rs LARGEST", By("capabilities_of_a_megabyte_are_refused_and_not_kept")),
    ("protocol/canonical.rs DEPTH", By("what_lies_too_deep_is_compared_byte_for_byte")),
    ("protocol/headers.rs MAX_NESTING", By("a_schema_nested_without_end_is_survived")),
    ("protocol/headers.rs SHOWN", By("a_mismatch_names_the_header_and_what_is_wrong_in_short")),
    ("protocol/sse/observer.rs NOTE", By("who_listens_hears_what_the_server_notifies_and_asks")),
    ("protocol/sse/observer.rs ID", By("it_is_known_after_what_and_when_a_stream_can_be_taken_up")),
    ("protocol/status_message.rs LONGEST", By("long_words_are_cut_between_characters")),
    ("bridge/form.rs DEPTH", By("a_schema_is_not_followed_for_ever")),
    ("telemetry/tap.rs TAPS", By("a_tap_shows_what_it_wants_bounded_and_counts_what_it_lost")),
    ("telemetry/tap.rs LINES", By("a_tap_shows_what_it_wants_bounded_and_counts_what_it_lost")),
    ("telemetry/tap.rs SHOWN_BYTES", By("arguments_and_results_are_shown_on_request_only")),
    // Calls and tasks.
    (
        "proxy/admission/rate.rs MAX_CALLERS",
        By("callers_beyond_the_bound_are_forgotten_and_others_keep_theirs"),
    ),
    (
        "proxy/call_registry.rs MAILBOX_CAPACITY",
        By("a_full_mailbox_refuses_mail_and_requests_and_still_takes_a_cancellation"),
    ),
    ("proxy/task_watchers.rs WAITERS_PER_TASK", By("only_so_many_requests_wait_for_one_task")),
    ("proxy/drive/open_requests.rs MAX_OPEN", By("the_number_of_input_requests_of_a_call_is_bounded")),
    ("proxy/drive/open_requests.rs MAX_OPEN_BYTES", By("the_size_of_input_requests_of_a_call_is_bounded")),
    ("proxy/drive/writes.rs PROGRESS_PERIOD", By("of_frequent_progress_the_last_message_is_shown")),
    ("proxy/drive/questions.rs MAX_RETRIES", By("a_server_that_turns_a_call_over_without_end_loses_it")),
    (
        "proxy/drive/anchor_state.rs RELEASE_TIMEOUT",
        Not("a wait at the very end; what the store has by then is good"),
    ),
    (
        "proxy/drive/delivery.rs STALL_TIMEOUT",
        By("a_client_that_listens_and_does_not_read_delays_its_task_for_a_bounded_time"),
    ),
    ("proxy/listen.rs MAX_RESOURCES", By("a_stream_subscribes_to_so_many_resources_and_leaves_out_the_rest")),
    (
        "proxy/tool_lists.rs MAX_ENTRIES",
        By("a_storm_of_principals_costs_nobody_else_the_catalogue_that_is_in_use"),
    ),
    ("proxy/tool_lists.rs MAX_PAGES", By("a_list_of_tools_without_end_is_read_so_far_and_keeps_no_call")),
    ("proxy/tool_lists.rs READ_TIMEOUT", By("a_list_of_tools_that_takes_long_keeps_no_call_waiting")),
    ("proxy/tool_lists.rs WAIT_LIMIT", By("a_list_of_tools_that_takes_long_keeps_no_call_waiting")),
    (
        "proxy/tool_lists.rs RETRY_DELAY",
        By("a_server_that_fails_or_hangs_at_listing_holds_up_no_further_call"),
    ),
    ("proxy/persist.rs STORE_RETRY_DELAY", Not("a pause between attempts, which nobody outside lengthens")),
    ("proxy/listen.rs MAX_TASKS", By("a_stream_follows_so_many_tasks_and_leaves_out_the_rest")),
    (
        "proxy/orphan_report.rs REPORT_WITHIN",
        By("a_server_that_does_not_answer_is_pending_and_reported_later"),
    ),
    ("proxy/restart.rs BATCH", Not("a share of the work: the rest is looked at right after it")),
    (
        "proxy/store_clock.rs KEPT_WITHIN",
        By("how_far_the_time_line_is_is_kept_each_minute_while_there_are_tasks"),
    ),
    ("proxy/sweep.rs BATCH", Not("a share of the work: the rest is looked at right after it")),
    ("store/disk/mod.rs QUEUE", By("more_changes_at_once_than_wait_in_a_queue_or_fit_a_commit_are_all_kept")),
    ("store/disk/mod.rs FILES", By("concurrent_large_results_are_queued_and_delay_no_other_change")),
    (
        "store/disk/writer.rs BATCH",
        By("more_changes_at_once_than_wait_in_a_queue_or_fit_a_commit_are_all_kept"),
    ),
    (
        "store/disk/writer.rs BATCH_BYTES",
        By("more_changes_at_once_than_wait_in_a_queue_or_fit_a_commit_are_all_kept"),
    ),
    (
        "store/disk/readers.rs READERS",
        By("more_changes_at_once_than_wait_in_a_queue_or_fit_a_commit_are_all_kept"),
    ),
    (
        "store/disk/record_cache.rs ENDED_BYTES",
        By("of_those_that_have_ended_the_last_used_stay_as_far_as_they_fit"),
    ),
    ("store/disk/results.rs LARGEST_IN_ROW", By("a_result_over_256_kib_is_a_file_and_returns_whole")),
    (
        "store/disk/error.rs MAX_REPORTED",
        By("tasks_that_cannot_be_read_are_named_once_each_and_no_more_of_them_than_can_be_looked_through"),
    ),
    (
        "store/disk/folder.rs LOG_PAGES",
        Not("when pages are carried over, which SQLite does; nobody is refused"),
    ),
    ("store/disk/folder.rs CACHE_KIB", Not("told to SQLite, which keeps no more pages than that in memory")),
    ("store/disk/folder.rs BUSY", Not("told to SQLite, which waits; a change that waits longer is not made")),
    ("store/mod.rs ALWAYS_ADMITTED", By("a_result_that_does_not_fit_ends_its_task_with_the_limit_named")),
    ("task/record.rs MAX_SERVER_INFO", By("server_info_is_stored_with_the_task_within_bounds")),
    ("task/retention.rs SHORTEST_GRANT", By("a_new_task_is_given_its_retention_or_a_minute")),
    ("task/retention.rs SHORTEST", By("a_result_stays_for_the_whole_retention")),
    ("task/retention.rs LONGEST", By("a_result_stays_for_the_whole_retention")),
    ("policy/threshold.rs SHORTEST_RETENTION", Not("the operator's own setting, raised to this")),
    // Older clients.
    ("proxy/session/pending_requests.rs REMEMBERED", By("only_so_much_is_remembered")),
    (
        "proxy/session/pending_requests.rs END_TIMEOUT",
        By("a_session_whose_end_is_never_answered_holds_up_nobody_for_ever"),
    ),
    ("proxy/session/unfinished_streams.rs REMEMBERED", By("only_so_much_is_remembered")),
    ("proxy/session/unfinished_streams.rs MAX_ID_BYTES", By("only_so_much_is_remembered")),
    (
        "proxy/session/in_flight.rs REMEMBERED",
        By("only_so_many_calls_that_have_left_are_remembered_and_none_that_was_answered"),
    ),
    (
        "proxy/session/client.rs REMEMBERED",
        By("only_so_many_sessions_of_a_revision_with_tasks_are_remembered"),
    ),
    (
        "proxy/session/ticket_holders.rs REMEMBERED",
        By("only_so_many_sessions_are_remembered_the_last_of_them"),
    ),
    (
        "proxy/session/ticket_holders.rs MAX_DECLARED",
        By("a_client_can_be_asked_what_it_has_declared_and_anything_where_that_is_more_than_is_remembered"),
    ),
    ("proxy/session/ticket_holders.rs MAX_NAME", By("a_client_says_who_it_is_and_whether_it_knows_tasks")),
    (
        "proxy/session/ticket_holders.rs MAX_SIMILAR",
        By("what_a_server_calls_its_tools_takes_no_more_memory_than_that"),
    ),
    (
        "proxy/session/presence.rs REMEMBERED",
        By("a_storm_of_sessions_makes_others_forgotten_by_eighths_the_oldest_first"),
    ),
    (
        "proxy/legacy/ping.rs MAX_REFUSAL_BYTES",
        Not(
            "of one answer to a question that is only asked where it is not known whether a session is there",
        ),
    ),
    ("proxy/legacy/ping.rs PING_TIMEOUT", Not("a wait; whoever waited is served as if there were no answer")),
    ("proxy/relay/forward.rs MAX_WHOLE", By("a_large_document_comes_as_it_is_sent")),
    ("proxy/answers/experimental.rs PAGE_SIZE", By("a_list_has_pages_and_every_task_once")),
    ("proxy/answers/ticket.rs MESSAGE_BUFFER", By("a_holder_that_reads_nothing_does_not_hold_up_its_call")),
    ("proxy/answers/experimental.rs MESSAGE_BUFFER", By("undeliverable_notifications_do_not_delay_the_task")),
    (
        "proxy/session/get_streams.rs MESSAGE_BUFFER",
        By("a_client_that_listens_and_does_not_read_delays_its_task_for_a_bounded_time"),
    ),
    (
        "proxy/legacy/task_call.rs MESSAGE_BUFFER",
        Not("whoever fills it waits, and is the call whose messages they are"),
    ),
    // Servers.
    ("upstream/http1/head.rs HEAD", By("a_head_without_end_is_refused")),
    ("upstream/http1/head.rs HEADERS", By("messages_in_one_response_are_bounded")),
    ("upstream/http1/head.rs BEFORE", By("a_server_that_announces_its_answer_for_ever_is_given_up")),
    ("upstream/http1/pool.rs IDLE", By("so_many_idle_connections_are_kept_and_not_for_long")),
    ("cli/host_input.rs LOOKED_AT", By("no_more_than_so_much_is_read")),
    ("telemetry/log_throttle.rs LINES", By("lines_of_one_kind_and_route_are_bounded_and_the_others_counted")),
    ("telemetry/log_throttle.rs WINDOW", By("as_many_lines_may_be_written_again_after_a_while")),
    (
        "telemetry/log_throttle.rs MOST",
        Not("what is not remembered shares one count: nothing is kept for it"),
    ),
    ("telemetry/log_throttle.rs LONGEST", Not("a longer key is cut: two that begin alike share one count")),
    ("protocol/id.rs DIGITS", Not("a longer number is compared as text: it is no id of ours")),
    ("protocol/sse/observer.rs EARLIER", By("the_ids_of_the_last_events_are_known")),
    (
        "proxy/session/in_flight.rs CANCELLATION_WINDOW",
        By("a_cancelled_call_may_ask_for_a_while_and_only_where_another_was_in_flight_by_then"),
    ),
    ("proxy/session/client_ids.rs REMEMBERED", By("only_so_many_are_remembered_and_none_of_another_range")),
    (
        "proxy/legacy/detach_on_drop.rs MAX_DETACHED",
        Not("beyond it a call belongs to its request, as calls did before"),
    ),
    ("upstream/own_ids.rs SEGMENTS", By("ids_of_other_ranges_are_in_no_segment")),
    ("admin/sign_in.rs CODE_LASTS", By("a_code_is_exchanged_once_and_within_minutes")),
    ("admin/sign_in.rs SESSION_LASTS", By("sessions_end_unused_and_with_the_token_and_are_few")),
    ("admin/sign_in.rs SESSIONS", By("sessions_end_unused_and_with_the_token_and_are_few")),
    ("admin/sign_in.rs ATTEMPTS", By("codes_are_tried_ten_times_a_minute")),
    ("admin/sign_in.rs ATTEMPTS_PER", By("codes_are_tried_ten_times_a_minute")),
    ("admin/history.rs STEP", By("the_ring_has_the_last_hour_and_no_more")),
    ("admin/history.rs STEPS", By("the_ring_has_the_last_hour_and_no_more")),
    ("admin/tasks.rs SEARCH", Not("a longer one is refused with 400")),
    (
        "dialect/client_info.rs LARGEST",
        Not("refused as invalid parameters; `limits.body_bytes` bounds what is read"),
    ),
    ("front/sign_in.rs LOOKUP_INTERVAL", Not("a pause: a path that is not known is 404 until then")),
    ("front/sign_in.rs LOOKUP_TIMEOUT", Not("a wait; what was not found in it is looked for again")),
    ("front/sign_in.rs MAX_BODY", Not("the smaller of it and `limits.body_bytes`, which is driven")),
    ("front/known_endpoints.rs ENDPOINT_TTL", Not("an hour after which the documents are asked for again")),
    ("client/operator.rs TOKEN_FILE", Not("the rest of a longer file is not read: it holds no token")),
    ("upstream/http1/content.rs PIECE", Not("a portion: the rest is decoded right after it")),
    ("upstream/http1/content.rs CODINGS", By("a_coding_that_cannot_be_read_is_named")),
    ("upstream/http1/content.rs ZSTD_WINDOW_LOG", By("a_window_of_zstd_is_bounded")),
    ("upstream/http1/cookies.rs COOKIES", By("a_server_cannot_fill_memory_with_cookies")),
    ("upstream/http1/cookies.rs COOKIE_BYTES", By("a_server_cannot_fill_memory_with_cookies")),
    ("upstream/http1/exchange.rs REDIRECTS", By("redirects_in_a_circle_are_followed_a_few_times")),
    (
        "upstream/http1/pool.rs CERTAIN",
        By("a_connection_that_has_been_idle_for_long_takes_only_what_may_be_repeated"),
    ),
    (
        "upstream/http1/pool.rs MARGIN",
        By("a_connection_that_has_been_idle_for_long_takes_only_what_may_be_repeated"),
    ),
    (
        "upstream/http1/pool.rs LONGEST_IDLE",
        By("a_connection_that_has_been_idle_for_long_takes_only_what_may_be_repeated"),
    ),
    (
        "upstream/http/http_sse_probe.rs FIRST_EVENT",
        By("a_server_of_the_old_transport_is_named_as_one_and_a_wrong_path_as_that"),
    ),
    (
        "upstream/http/http_sse_probe.rs EVENT",
        By("a_server_of_the_old_transport_is_named_as_one_and_a_wrong_path_as_that"),
    ),
    ("upstream/http1/pool.rs IDLE_CONNECTIONS", By("so_many_idle_connections_are_kept_and_not_for_long")),
    ("upstream/http1/pool.rs TCP_KEEP_ALIVE", Not("the system's: it probes by itself")),
    ("upstream/http1/connection.rs READ", Not("a portion: the rest is read right after it")),
    ("upstream/http1/connection.rs READ_IN_PLACE", Not("a portion: the rest is read right after it")),
    ("upstream/http/server.rs ERROR_BODY", By("messages_in_one_response_are_bounded")),
    ("upstream/http/server.rs ERROR_BODY_TIME", Not("a wait; the error is told without its body after it")),
    ("upstream/http/server.rs DETAIL_CHARS", By("messages_in_one_response_are_bounded")),
    ("upstream/http/server.rs DOCUMENT", By("messages_in_one_response_are_bounded")),
    (
        "upstream/transport.rs FAREWELL",
        Not("a wait at the end of the process, which nobody outside lengthens"),
    ),
    (
        "upstream/stdio/mod.rs FAREWELL",
        By("a_server_that_closes_ends_its_processes_in_order_and_waits_for_them"),
    ),
    ("upstream/stdio/mod.rs READ", Not("a portion: what is kept of it is bounded by `limits.result_bytes`")),
    (
        "upstream/stdio/mod.rs SHOWN",
        Not("the beginning of a line that is there whole; how many are told is bounded"),
    ),
    (
        "upstream/stdio/mod.rs LAST_WORDS",
        By("a_process_that_is_ended_while_it_writes_is_read_on_until_it_has_ended"),
    ),
    ("upstream/stdio/mod.rs STATUS", By("a_process_that_says_nothing_more_and_lives_is_ended")),
    (
        "upstream/stdio/initialize.rs PATIENCE",
        By("a_refusal_of_initialize_that_says_nothing_of_revisions_keeps_its_words"),
    ),
    (
        "upstream/stdio/initialize.rs REMEMBERED",
        By("a_server_of_2026_07_28_alone_is_told_apart_and_not_started_again_for_a_while"),
    ),
    (
        "upstream/stdio/lines.rs TOKEN",
        By("of_a_line_that_is_too_long_the_call_is_found_wherever_its_id_is_written"),
    ),
    ("upstream/stdio/command.rs PER_CALLER", By("a_caller_more_than_may_have_a_process_is_told")),
    (
        "upstream/stdio/child.rs WAITING",
        By("a_process_that_does_not_read_is_waited_for_by_so_many_and_the_next_is_told"),
    ),
    (
        "upstream/stdio/child.rs WAITING_BYTES",
        By("what_waits_for_a_process_that_does_not_read_is_bounded_in_bytes"),
    ),
    ("upstream/stdio/child.rs CLOSING", By("a_process_that_hangs_at_its_start_is_given_up_told_and_killed")),
    (
        "upstream/stdio/child.rs TERMINATING",
        By("a_process_that_hangs_at_its_start_is_given_up_told_and_killed"),
    ),
    (
        "upstream/stdio/child.rs LEFT_BEHIND",
        By("what_a_process_leaves_behind_is_killed_after_a_moment_and_not_waited_for_for_ever"),
    ),
    (
        "upstream/stdio/child.rs KILLING",
        By("what_a_process_leaves_behind_is_killed_after_a_moment_and_not_waited_for_for_ever"),
    ),
    ("upstream/stdio/child.rs LAST_WORDS", Not("a wait; what comes later is not in the log")),
    (
        "upstream/stdio/message_line.rs TOGETHER",
        Not("a portion: what waits to be written is bounded by `WAITING_BYTES`"),
    ),
    ("upstream/stdio/child.rs REMARKS", Not("a portion: what is kept of it is bounded by `LINE`")),
    ("upstream/stdio/stderr.rs LINE", By("of_a_line_without_end_the_beginning_is_kept")),
    ("upstream/stdio/stderr.rs LAST", By("of_a_line_without_end_the_beginning_is_kept")),
    ("upstream/stdio/start_limiter.rs BUDGET", By("so_many_starts_in_a_minute_are_enough")),
    (
        "upstream/stdio/start_limiter.rs LONGEST_PAUSE",
        By("the_pause_doubles_to_a_minute_and_only_a_steady_server_starts_over"),
    ),
    (
        "upstream/legacy/pool/leases.rs BESIDE",
        By("where_the_last_place_is_anothers_a_call_is_made_beside_its_own_kinds_task"),
    ),
    ("upstream/stdio/start_limiter.rs REMEMBERED", By("what_ends_for_one_caller_is_started_for_another")),
    (
        "upstream/stdio/start_limiter.rs PATIENCE",
        By("what_ends_again_and_again_is_started_ever_later_and_whoever_would_wait_long_is_told"),
    ),
    ("upstream/http/relayed_body.rs QUICK", Not("a wait of nobody: the client has left")),
    ("upstream/transport.rs QUIET", By("idle_sessions_are_closed_and_the_list_session_last")),
    ("upstream/transport.rs QUIET_LISTS", By("idle_sessions_are_closed_and_the_list_session_last")),
    (
        "upstream/legacy/pool/mod.rs LONGEST_PAUSE",
        Not("a pause between attempts, which nobody outside lengthens"),
    ),
    (
        "upstream/negotiation.rs REMEMBERED",
        By("a_remembered_offer_is_forgotten_after_a_while_and_on_request"),
    ),
    (
        "upstream/legacy/server.rs CHECK_PERIOD",
        By("a_server_is_pinged_once_a_second_whatever_number_of_calls_fail"),
    ),
    ("upstream/legacy/check.rs PING", Not("a wait in the background, after which nothing changes")),
    (
        "upstream/legacy/pool/mod.rs REFUSED_AGAIN",
        By("a_call_that_a_fresh_session_refuses_too_ends_with_the_servers_error"),
    ),
    ("upstream/legacy/handshake.rs OPENING", Not("a wait; the call goes out after it")),
    ("upstream/http/listen.rs MISSED_PERIOD", By("what_was_missed_is_told_at_once_and_then_only_so_often")),
    ("upstream/http/listen.rs LONGEST_PAUSE", By("a_server_is_not_besieged_whatever_pause_it_names")),
    ("upstream/http/listen.rs SHORTEST_PAUSE", By("a_server_is_not_besieged_whatever_pause_it_names")),
    ("upstream/http/listen.rs FRUITLESS", By("a_server_is_not_besieged_whatever_pause_it_names")),
    ("upstream/http/stream_before_call.rs OPENS", By("a_call_does_not_wait_for_ever")),
    (
        "upstream/http/stream_before_call.rs BEGINS",
        By("a_client_that_does_not_listen_is_waited_for_a_moment_only"),
    ),
    ("upstream/legacy/emulated/mod.rs BATCH", By("a_client_of_a_legacy_revision_gets_its_own")),
    ("upstream/legacy/emulated/session.rs MAX_RESOURCES", By("one_session_subscribes_to_so_many_resources")),
    (
        "upstream/legacy/emulated/session.rs MAX_OPEN",
        By("so_many_questions_outside_any_call_wait_for_a_client"),
    ),
    ("upstream/legacy/emulated/stream.rs EVENTS", By("of_what_nobody_hears_so_much_is_kept_the_last_of_it")),
    (
        "upstream/legacy/emulated/stream.rs EVENT_BYTES",
        By("of_what_nobody_hears_so_much_is_kept_the_last_of_it"),
    ),
    ("upstream/legacy/outbound.rs COURTESIES", By("undelivered_responses_are_bounded")),
    ("upstream/legacy/mailbox.rs KEPT", By("unread_notifications_are_bounded")),
    (
        "upstream/legacy/mailbox.rs KEPT_BYTES",
        By("of_notifications_that_nobody_fetches_so_many_bytes_are_kept"),
    ),
    ("upstream/legacy/reports.rs KEPT", By("unread_notifications_are_bounded")),
    (
        "upstream/legacy/session.rs ABANDONED",
        By("a_process_that_answers_none_of_many_cancelled_calls_is_given_up"),
    ),
    ("upstream/legacy/session.rs AT_ONCE", By("many_calls_over_the_drain_all_get_an_error")),
    (
        "upstream/legacy/outbound.rs TURN",
        By("a_session_is_deleted_although_its_cancellation_cannot_be_delivered"),
    ),
    (
        "upstream/legacy/session.rs TAKING_UP",
        By("an_answer_waits_for_the_stream_of_its_call_but_not_for_ever"),
    ),
    (
        "upstream/http/resume.rs PATIENCE",
        By("a_server_that_refuses_is_given_up_ten_seconds_after_the_first_attempt"),
    ),
    (
        "upstream/http/resume.rs FRUITLESS",
        By("a_server_is_not_asked_again_faster_or_later_than_it_is_good_for"),
    ),
    (
        "upstream/http/resume.rs LONGEST_PAUSE",
        By("a_server_is_not_asked_again_faster_or_later_than_it_is_good_for"),
    ),
    (
        "upstream/http/resume.rs REFUSED_PAUSE",
        By("a_server_is_not_asked_again_faster_or_later_than_it_is_good_for"),
    ),
    (
        "upstream/legacy/attribution.rs UPDATE",
        By("a_change_of_a_resource_that_is_told_in_too_many_words_is_not_kept_for_those_who_listen"),
    ),
    (
        "upstream/legacy/attribution.rs QUESTIONS",
        By("a_call_with_endless_input_requests_fails_and_other_calls_are_served"),
    ),
    // The process.
    (
        "telemetry/log.rs MAX_BUFFERED_BYTES",
        By("a_stalled_log_reader_delays_no_call_and_missed_lines_are_counted"),
    ),
    ("cli/report/log.rs LONGEST", By("lines_of_others_are_counted_and_long_ones_take_no_memory")),
    ("front/layers/access_entry.rs SHOWN_TASK_ID", By("no_line_has_the_id_of_a_task_or_of_a_session_whole")),
    (
        "task/history.rs ENTRIES",
        By("however_much_happens_the_first_and_the_last_are_there_and_all_are_counted"),
    ),
    ("telemetry/metrics/tools.rs TOOLS", By("tools_beyond_the_places_of_a_route_are_counted_together")),
    ("telemetry/metrics/tools.rs LISTED", By("no_more_names_are_kept_than_a_list_may_have")),
    ("telemetry/log.rs FINAL_FLUSH_LIMIT", By("the_end_waits_for_what_is_left_but_not_for_ever")),
    ("telemetry/log.rs FLUSH_INTERVAL", Not("a wait of a line, which holds up nobody")),
    ("telemetry/line.rs MAX_VALUE_BYTES", By("of_a_long_value_the_beginning_is_written")),
    ("runtime/private_key.rs MAX_PEM", By("tls_settings_are_read_and_their_problems_have_their_place")),
    ("config/mod.rs MAX_FILE", By("a_configuration_without_end_or_bottom_is_refused")),
    ("config/secret.rs MAX_FILE", By("a_configuration_without_end_or_bottom_is_refused")),
    (
        "config/secret.rs SHORTEST_TOKEN",
        By("a_token_that_cannot_be_used_is_named_by_its_place_and_never_shown"),
    ),
    ("config/values.rs TOKEN_NAME", By("a_token_that_cannot_be_used_is_named_by_its_place_and_never_shown")),
    ("config/values.rs LONGEST", By("a_configuration_without_end_or_bottom_is_refused")),
    ("config/yaml.rs MAX_DEPTH", By("a_configuration_without_end_or_bottom_is_refused")),
    ("config/yaml.rs MAX_NODES", By("aliases_of_aliases_do_not_grow_without_bound")),
    (
        "telemetry/trace/otlp/mod.rs QUEUE",
        By("beside_a_collector_that_stalls_spans_beyond_the_queue_are_dropped_and_counted"),
    ),
    (
        "telemetry/trace/otlp/mod.rs BATCH",
        By("spans_are_sent_together_after_a_while_or_as_soon_as_there_are_enough"),
    ),
    (
        "telemetry/trace/otlp/mod.rs RETRIES",
        By("a_collector_that_is_gone_is_asked_again_and_the_loss_is_told_once_a_minute"),
    ),
    ("telemetry/trace/otlp/mod.rs LONGEST_PAUSE", By("a_collector_may_want_a_pause_of_some_length")),
    ("telemetry/trace/otlp/collector.rs MAX_RESPONSE_BYTES", By("an_answer_without_end_is_not_read")),
    (
        "telemetry/trace/otlp/collector.rs MAX_REASON_CHARS",
        Not("the beginning of a text; how often it is told is bounded"),
    ),
    ("telemetry/trace/span.rs EVENTS", By("a_span_keeps_so_many_events_and_links_and_counts_the_others")),
    ("telemetry/trace/span.rs LINKS", By("a_span_keeps_so_many_events_and_links_and_counts_the_others")),
    ("telemetry/trace/mcp.rs SHOWN", By("of_what_a_client_has_chosen_the_beginning_is_told")),
    ("telemetry/trace/mcp.rs TASK_TAG_CHARS", By("of_what_a_client_has_chosen_the_beginning_is_told")),
    ("protocol/trace_context.rs STATE_CHARS", By("headers_are_read_as_meta_is")),
    ("app/mod.rs SPAN_FLUSH_TIMEOUT", By("a_collector_that_stalls_keeps_neither_a_call_nor_the_end_waiting")),
    ("app/mod.rs FINAL_TIMEOUT", Not("a wait at the end of the process, which nobody outside lengthens")),
    // What runs for one user, at whose terminal it shows.
    ("client/http_transport.rs MAX_MESSAGE", Not(OF_ONE_USER)),
    ("client/message.rs MAX_SHOWN", Not(OF_ONE_USER)),
    ("client/tools.rs MAX_PAGES", By("pages_are_read_until_the_last_or_until_a_cursor_repeats")),
    ("client/tools.rs MAX_TOOLS", By("pages_are_read_until_the_last_or_until_a_cursor_repeats")),
    ("client/ticket.rs MAX_TICKET", By("an_answer_that_no_proxy_writes_is_no_ticket")),
    ("client/ticket.rs MAX_POLLS", Not("half a second each at least: hours, which a test does not wait for")),
    ("cli/call.rs MAX_ROUNDS", By("endless_input_requests_cancel_the_call")),
    ("client/mod.rs LEAST_POLL_INTERVAL", Not(OF_ONE_USER)),
    ("client/mod.rs LOST_POLLS", Not(OF_ONE_USER)),
    ("client/legacy/resume.rs FRUITLESS", Not(OF_ONE_USER)),
    ("client/legacy/resume.rs ATTEMPTS", Not(OF_ONE_USER)),
    ("client/legacy/streams.rs ATTEMPTS", Not(OF_ONE_USER)),
    ("client/legacy/streams.rs MAX_QUEUED", Not(OF_ONE_USER)),
    ("client/legacy/streams.rs OPEN_TIMEOUT", Not(OF_ONE_USER)),
    ("client/legacy/handshake.rs CLOSE_TIMEOUT", Not(OF_ONE_USER)),
    ("cli/call.rs CANCEL_PATIENCE", Not(OF_ONE_USER)),
    ("cli/ask/terminal.rs MAX_LINE", By("a_line_that_is_no_text_or_too_long_is_an_error")),
    ("demo/server.rs MAX_BODY", Not(OF_ONE_USER)),
    ("demo/server.rs MAX_SESSIONS", Not(OF_ONE_USER)),
];

const OF_ONE_USER: &str = "of a command that one user runs and ends";

/// Every function of the sources and the tests that is a test, and what it does.
pub(super) fn tests() -> BTreeMap<String, String> {
    let mut tests = BTreeMap::new();
    for (_, text) in in_sources("src").chain(in_sources("tests/it")) {
        let mut is_test = false;
        let mut of: Option<&mut String> = None;
        for line in text.lines().map(str::trim) {
            let begins = line == "#[test]" || line.starts_with("#[tokio::test");
            is_test |= begins;
            if begins {
                of = None;
            }
            let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
            if let Some((name, _)) = name.and_then(|rest| rest.split_once('('))
                && std::mem::take(&mut is_test)
            {
                of = Some(tests.entry(name.to_owned()).or_default());
            }
            if let Some(text) = &mut of {
                text.extend([line, "\n"]);
            }
        }
    }
    tests
}

#[test]
fn every_listed_limit_has_a_test_that_reaches_it_or_a_reason() {
    let listed = rows().into_iter().map(|row| match row[0].ends_with(".rs") {
        true => format!("{} {}", row[0], row[1]),
        false => row[0].clone(),
    });
    let (listed, held): (BTreeSet<_>, BTreeSet<_>) =
        (listed.collect(), BOUNDS.iter().map(|(bound, _)| (*bound).to_owned()).collect());
    let difference: Vec<_> = listed.symmetric_difference(&held).collect();
    assert!(difference.is_empty(), "in src/manual/limits.md or here, and not in both: {difference:#?}");
    assert_eq!(held.len(), BOUNDS.len(), "a bound is here twice");

    let tests = tests();
    for (bound, held) in BOUNDS {
        match held {
            By(test) => assert!(tests.contains_key(*test), "{bound}: there is no test {test}"),
            Not(reason) => {
                assert!(bound.contains(' '), "{bound} is the operator's to set: nothing excuses it");
                assert!(reason.len() > 20, "{bound}: {reason}");
            }
        }
    }
}
