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
    ("limits.client_sessions", By("sessions_are_bounded_and_idle_ones_are_evicted")),
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
    ("telemetry/events.rs MAX_PEER_VALUE_CHARS", By("logged_values_of_peers_are_truncated")),
    ("dialect/ambiguity.rs MAX_METHODS", By("methods_are_found_in_any_json_text")),
    ("dialect/ambiguity.rs MAX_METHOD_CHARS", By("methods_are_found_in_any_json_text")),
    ("runtime/net.rs BACKLOG", Not("the system's: it refuses or delays what goes beyond")),
    ("runtime/pooled_timer.rs MAX_POOLED", By("a_timer_pool_is_bounded_and_can_be_disabled")),
    ("runtime/connection_limiter.rs RESERVED_PERMITS", By("control_messages_do_not_wait_for_calls")),
    ("runtime/clock.rs STEP_TOLERANCE", By("a_difference_below_the_tolerance_changes_nothing")),
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
        "front/connection.rs MAX_CACHED_BYTES",
        By("a_small_client_profile_is_remembered_and_a_large_one_is_not"),
    ),
    ("front/connection.rs LINGER", By("a_client_that_sends_on_after_its_refusal_is_read_for_a_moment_only")),
    ("front/write_timeout.rs PORTION", By("a_slow_reader_gets_everything")),
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
        "front/half_closed.rs MAX_WITHHELD_POLLS",
        By("a_client_that_ends_its_side_within_its_request_has_made_no_call"),
    ),
    ("admin/listener.rs READ_HEADERS", Not("a wait; each of the few connections ends after it")),
    ("admin/server.rs READ_BODY", Not("a wait; the request is refused after it")),
    ("admin/server.rs BODY_BYTES", By("an_unexpected_body_is_read_up_to_a_limit")),
    ("admin/listener.rs WRITE", By("a_stalled_events_client_is_disconnected_without_affecting_others")),
    ("admin/reload.rs QUEUE", Not("operators with the token, who wait their turn")),
    ("app/run.rs MAX_LOGGED_KEYS", Not("names in a line of the log")),
    (
        "config/config_files.rs MAX_DIGESTED",
        Not("what is behind it is not looked at; the files of keys are shorter"),
    ),
    ("admin/events.rs WATCHERS", By("event_streams_over_the_limit_are_refused_with_the_limit")),
    ("admin/events.rs MAX_EVENT_TASKS", By("ten_thousand_tasks_are_shown_page_by_page")),
    ("admin/tasks.rs MAX_PAGE_TASKS", By("a_task_query_is_parsed_or_rejected_with_a_reason")),
    ("admin/tasks.rs MAX_SHOWN_NAME", Not("a word of an error; the request itself is bounded")),
    ("proxy/tasks/operator_tasks.rs SCAN_LIMIT", By("ten_thousand_tasks_are_shown_page_by_page")),
    ("proxy/tasks/operator_tasks.rs MAX_CANDIDATES", Not("more digits name one of them")),
    ("proxy/tasks/operator_tasks.rs MAX_NAMES", Not("another name is looked for among the youngest tasks")),
    (
        "protocol/capability.rs MAX_DECLARATION_BYTES",
        By("capabilities_of_a_megabyte_are_refused_and_not_kept"),
    ),
    ("protocol/canonical.rs MAX_DEPTH", By("what_lies_too_deep_is_compared_byte_for_byte")),
    ("protocol/headers.rs MAX_NESTING", By("a_schema_nested_without_end_is_survived")),
    ("protocol/headers.rs MAX_EXCERPT_CHARS", By("a_mismatch_names_the_header_and_what_is_wrong_in_short")),
    (
        "protocol/sse/observer.rs MAX_COLLECTED_BYTES",
        By("a_collecting_observer_returns_notifications_and_requests"),
    ),
    ("protocol/sse/observer.rs MAX_ID_BYTES", By("the_last_id_and_the_retry_delay_of_a_stream_are_known")),
    ("protocol/status_message.rs MAX_STATUS_MESSAGE_BYTES", By("long_words_are_cut_between_characters")),
    ("bridge/form.rs MAX_DEPTH", By("a_schema_is_not_followed_for_ever")),
    ("telemetry/tap.rs MAX_TAPS", By("a_tap_filters_events_and_counts_dropped_lines")),
    ("telemetry/tap.rs QUEUE_LINES", By("a_tap_filters_events_and_counts_dropped_lines")),
    ("telemetry/tap.rs MAX_CONTENT_BYTES", By("arguments_and_results_are_shown_on_request_only")),
    // Calls and tasks.
    ("proxy/admission/rate.rs MAX_CALLERS", By("callers_beyond_the_bound_are_evicted")),
    ("proxy/call_registry.rs MAILBOX_CAPACITY", By("a_full_mailbox_refuses_messages_except_a_cancellation")),
    ("proxy/tasks/watchers.rs WAITERS_PER_TASK", By("waiting_requests_of_one_task_are_bounded")),
    ("proxy/drive/open_requests.rs MAX_OPEN", By("the_number_of_input_requests_of_a_call_is_bounded")),
    ("proxy/drive/open_requests.rs MAX_OPEN_BYTES", By("the_size_of_input_requests_of_a_call_is_bounded")),
    ("proxy/drive/writes.rs PROGRESS_PERIOD", By("of_frequent_progress_the_last_message_is_shown")),
    ("proxy/drive/questions.rs MAX_RETRIES", By("a_call_with_too_many_input_required_results_fails")),
    (
        "proxy/drive/anchor_state.rs RELEASE_TIMEOUT",
        Not("a wait at the very end; what the store has by then is good"),
    ),
    ("proxy/drive/delivery.rs MAX_UNSENT", By("a_client_that_does_not_read_keeps_no_other_from_the_result")),
    (
        "proxy/drive/delivery.rs STALL_TIMEOUT",
        By("a_client_that_listens_and_does_not_read_delays_its_task_for_a_bounded_time"),
    ),
    ("proxy/listen.rs MAX_RESOURCES", By("a_stream_subscribes_to_so_many_resources_and_leaves_out_the_rest")),
    ("proxy/tool_lists.rs MAX_ENTRIES", By("new_principals_do_not_evict_a_tool_list_in_use")),
    ("proxy/tool_lists.rs MAX_PAGES", By("a_list_of_tools_without_end_is_read_so_far_and_keeps_no_call")),
    ("proxy/tool_lists.rs READ_TIMEOUT", By("a_list_of_tools_that_takes_long_keeps_no_call_waiting")),
    ("proxy/tool_lists.rs WAIT_LIMIT", By("a_list_of_tools_that_takes_long_keeps_no_call_waiting")),
    (
        "proxy/tool_lists.rs RETRY_DELAY",
        By("a_server_that_fails_or_hangs_at_listing_holds_up_no_further_call"),
    ),
    (
        "proxy/tasks/persist.rs STORE_RETRY_DELAY",
        Not("a pause between attempts, which nobody outside lengthens"),
    ),
    ("proxy/listen.rs MAX_TASKS", By("a_stream_follows_so_many_tasks_and_leaves_out_the_rest")),
    (
        "proxy/tasks/pending_credentials.rs MAX_EARLY_CREDENTIALS",
        By("a_caller_that_comes_before_it_is_waited_for_is_remembered_until_all_are_known"),
    ),
    (
        "proxy/tasks/orphan_report.rs REPORT_TIMEOUT",
        By("a_server_that_does_not_respond_is_pending_and_reported_later"),
    ),
    ("proxy/tasks/restart.rs BATCH_SIZE", Not("a share of the work: the rest is looked at right after it")),
    (
        "proxy/tasks/store_clock.rs CLOCK_STORE_INTERVAL",
        By("the_time_line_is_stored_each_minute_while_there_are_tasks"),
    ),
    ("proxy/tasks/sweep.rs BATCH_SIZE", Not("a share of the work: the rest is looked at right after it")),
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
    ("store/disk/record_cache.rs ENDED_BYTES", By("finished_records_are_evicted_least_recently_used_first")),
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
    (
        "store/disk/folder.rs BUSY_TIMEOUT",
        Not("told to SQLite, which waits; a change that waits longer is not made"),
    ),
    ("store/mod.rs ALWAYS_ADMITTED", By("a_result_that_does_not_fit_ends_its_task_with_the_limit_named")),
    ("task/record.rs MAX_SERVER_INFO", By("server_info_is_stored_with_the_task_within_bounds")),
    ("task/retention.rs MIN_GRANT", By("a_new_task_is_given_its_retention_or_a_minute")),
    ("task/retention.rs MIN_RETENTION", By("a_result_stays_for_the_whole_retention")),
    ("task/retention.rs MAX_RETENTION", By("a_result_stays_for_the_whole_retention")),
    ("policy/threshold.rs MIN_RETENTION", Not("the operator's own setting, raised to this")),
    // Older clients.
    ("proxy/session/pending_requests.rs MAX_ENDED_SESSIONS", By("only_so_much_is_remembered")),
    (
        "proxy/session/pending_requests.rs END_TIMEOUT",
        By("a_delete_without_response_delays_requests_for_a_bounded_time"),
    ),
    ("proxy/session/unfinished_streams.rs MAX_EVENTS", By("only_so_much_is_remembered")),
    ("proxy/session/unfinished_streams.rs MAX_ID_BYTES", By("only_so_much_is_remembered")),
    (
        "proxy/session/in_flight.rs MAX_REMEMBERED_CALLS",
        By("abandoned_calls_are_bounded_and_answered_ones_are_removed"),
    ),
    ("proxy/session/client.rs MAX_REVISIONS", By("remembered_sessions_with_tasks_are_bounded")),
    ("proxy/session/ticket_holders.rs MAX_SESSIONS", By("the_last_sessions_are_remembered_up_to_a_bound")),
    (
        "proxy/session/ticket_holders.rs MAX_CAPABILITY_BYTES",
        By("undeclared_input_is_refused_unless_the_capabilities_are_too_large"),
    ),
    (
        "proxy/session/ticket_holders.rs MAX_CLIENT_NAME_BYTES",
        By("the_handshake_declares_the_client_name_and_tasks"),
    ),
    ("proxy/session/ticket_holders.rs MAX_SIMILAR_NAMES", By("stored_tool_names_of_a_server_are_bounded")),
    ("proxy/session/presence.rs MAX_SESSIONS", By("a_full_presence_map_evicts_the_oldest_eighth")),
    (
        "proxy/legacy/ping.rs MAX_REFUSAL_BYTES",
        Not(
            "of one answer to a question that is only asked where it is not known whether a session is there",
        ),
    ),
    ("proxy/legacy/ping.rs PING_TIMEOUT", Not("a wait; whoever waited is served as if there were no answer")),
    ("proxy/relay/forward.rs MAX_BUFFERED_BYTES", By("a_large_document_comes_as_it_is_sent")),
    ("proxy/answers/experimental.rs PAGE_SIZE", By("a_list_has_pages_and_every_task_once")),
    ("proxy/answers/mod.rs MESSAGE_BUFFER", By("undeliverable_notifications_do_not_delay_the_task")),
    ("proxy/session/listening.rs OPEN_TIMEOUT", Not("a wait; the call goes out after it")),
    (
        "proxy/session/get_streams.rs MESSAGE_BUFFER",
        By("a_client_that_listens_and_does_not_read_delays_its_task_for_a_bounded_time"),
    ),
    (
        "proxy/legacy/task_call.rs MESSAGE_BUFFER",
        Not("whoever fills it waits, and is the call whose messages they are"),
    ),
    // Servers.
    ("upstream/http1/head.rs MAX_HEAD_BYTES", By("a_head_without_end_is_refused")),
    ("upstream/http1/head.rs MAX_HEADERS", By("messages_in_one_response_are_bounded")),
    ("upstream/http1/head.rs MAX_SKIPPED_BYTES", By("interim_responses_without_end_are_refused")),
    ("upstream/http1/pool.rs MAX_IDLE", By("idle_connections_are_bounded_in_number_and_time")),
    ("cli/host_input.rs MAX_INPUT_BYTES", By("the_input_that_is_read_is_bounded")),
    (
        "telemetry/log_throttle.rs MAX_LINES",
        By("lines_of_one_kind_and_route_are_bounded_and_the_others_counted"),
    ),
    ("telemetry/log_throttle.rs WINDOW", By("lines_are_written_again_in_the_next_window")),
    (
        "telemetry/log_throttle.rs MAX_TRACKED_KINDS",
        Not("what is not remembered shares one count: nothing is kept for it"),
    ),
    (
        "telemetry/log_throttle.rs MAX_SCOPE_BYTES",
        Not("a longer key is cut: two that begin alike share one count"),
    ),
    ("protocol/id.rs MAX_PLAIN_DIGITS", Not("a longer number is compared as text: it is no id of ours")),
    ("protocol/sse/observer.rs MAX_EARLIER_IDS", By("the_ids_of_the_last_events_are_known")),
    (
        "proxy/session/in_flight.rs CANCELLATION_WINDOW",
        By("a_cancelled_call_blocks_attribution_to_concurrent_calls_for_a_while"),
    ),
    ("proxy/session/client_ids.rs MAX_IDS", By("remembered_ids_are_bounded_and_in_range")),
    (
        "proxy/legacy/detach_on_drop.rs MAX_DETACHED",
        Not("beyond it a call belongs to its request, as calls did before"),
    ),
    ("upstream/own_ids.rs SEGMENTS", By("ids_of_other_ranges_are_in_no_segment")),
    ("admin/sign_in.rs CODE_LIFETIME", By("a_code_is_valid_once_and_for_minutes")),
    ("admin/sign_in.rs SESSION_IDLE_TIMEOUT", By("sessions_expire_end_with_the_token_and_are_bounded")),
    ("admin/sign_in.rs SESSIONS", By("sessions_expire_end_with_the_token_and_are_bounded")),
    ("admin/sign_in.rs ATTEMPTS", By("codes_are_tried_ten_times_a_minute")),
    ("admin/sign_in.rs ATTEMPT_PERIOD", By("codes_are_tried_ten_times_a_minute")),
    ("admin/history.rs STEP", By("the_history_covers_the_last_hour")),
    ("admin/history.rs STEPS", By("the_history_covers_the_last_hour")),
    ("admin/tasks.rs MAX_SEARCH_LENGTH", Not("a longer one is refused with 400")),
    (
        "dialect/client_info.rs LARGEST",
        Not("refused as invalid parameters; `limits.body_bytes` bounds what is read"),
    ),
    ("front/sign_in.rs LOOKUP_INTERVAL", Not("a pause: a path that is not known is 404 until then")),
    ("front/sign_in.rs LOOKUP_TIMEOUT", Not("a wait; what was not found in it is looked for again")),
    ("front/sign_in.rs MAX_BODY_BYTES", Not("the smaller of it and `limits.body_bytes`, which is driven")),
    ("front/known_endpoints.rs ENDPOINT_TTL", Not("an hour after which the documents are asked for again")),
    ("client/operator.rs MAX_TOKEN_FILE", Not("the rest of a longer file is not read: it holds no token")),
    ("upstream/http1/content.rs DECODED_BYTES", Not("a portion: the rest is decoded right after it")),
    ("upstream/http1/content.rs MAX_CODINGS", By("a_coding_that_cannot_be_read_is_named")),
    ("upstream/http1/content.rs ZSTD_WINDOW_LOG", By("a_window_of_zstd_is_bounded")),
    ("upstream/http1/cookies.rs MAX_COOKIES", By("a_server_cannot_fill_memory_with_cookies")),
    ("upstream/http1/cookies.rs MAX_COOKIE_BYTES", By("a_server_cannot_fill_memory_with_cookies")),
    ("upstream/http1/exchange.rs MAX_REDIRECTS", By("redirects_in_a_circle_are_followed_a_few_times")),
    (
        "upstream/http1/pool.rs SAFE_IDLE",
        By("a_connection_that_has_been_idle_for_long_takes_only_what_may_be_repeated"),
    ),
    (
        "upstream/http1/pool.rs IDLE_MARGIN",
        By("a_connection_that_has_been_idle_for_long_takes_only_what_may_be_repeated"),
    ),
    (
        "upstream/http1/pool.rs MAX_ANNOUNCED_IDLE",
        By("a_connection_that_has_been_idle_for_long_takes_only_what_may_be_repeated"),
    ),
    (
        "upstream/http/http_sse_probe.rs FIRST_EVENT_TIMEOUT",
        By("a_server_of_the_old_transport_is_named_as_one_and_a_wrong_path_as_that"),
    ),
    (
        "upstream/http/http_sse_probe.rs MAX_EVENT_BYTES",
        By("a_server_of_the_old_transport_is_named_as_one_and_a_wrong_path_as_that"),
    ),
    ("upstream/http1/pool.rs MAX_IDLE_CONNECTIONS", By("idle_connections_are_bounded_in_number_and_time")),
    ("upstream/http1/pool.rs TCP_KEEP_ALIVE", Not("the system's: it probes by itself")),
    ("upstream/http1/connection.rs STACK_READ_BYTES", Not("a portion: the rest is read right after it")),
    ("upstream/http1/connection.rs DIRECT_READ_BYTES", Not("a portion: the rest is read right after it")),
    ("upstream/http/server.rs MAX_ERROR_BODY_BYTES", By("messages_in_one_response_are_bounded")),
    (
        "upstream/http/server.rs ERROR_BODY_TIMEOUT",
        Not("a wait; the error is told without its body after it"),
    ),
    ("upstream/http/server.rs MAX_DETAIL_CHARS", By("messages_in_one_response_are_bounded")),
    ("upstream/http/server.rs MAX_DOCUMENT_BYTES", By("messages_in_one_response_are_bounded")),
    (
        "upstream/transport.rs CLOSE_TIMEOUT",
        Not("a wait at the end of the process, which nobody outside lengthens"),
    ),
    (
        "upstream/stdio/mod.rs CLOSE_TIMEOUT",
        By("a_server_that_closes_ends_its_processes_in_order_and_waits_for_them"),
    ),
    (
        "upstream/stdio/mod.rs READ_BYTES",
        Not("a portion: what is kept of it is bounded by `limits.result_bytes`"),
    ),
    (
        "upstream/stdio/mod.rs MAX_SHOWN",
        Not("the beginning of a line that is there whole; how many are told is bounded"),
    ),
    (
        "upstream/stdio/mod.rs LAST_OUTPUT_TIMEOUT",
        By("the_output_of_a_process_that_is_being_ended_is_read_to_its_end"),
    ),
    ("upstream/stdio/mod.rs STATUS", By("a_process_that_closes_its_output_is_ended")),
    (
        "upstream/legacy/handshake.rs PROBE_TIMEOUT",
        By("a_rejection_of_initialize_without_revisions_keeps_its_text"),
    ),
    (
        "upstream/stdio/modern_only.rs VERDICT_LIFETIME",
        By("a_server_of_2026_07_28_alone_is_recognised_and_not_started_again_for_a_while"),
    ),
    (
        "upstream/stdio/lines.rs MAX_TOKEN_BYTES",
        By("the_call_of_a_too_long_line_is_found_wherever_its_id_is"),
    ),
    (
        "upstream/stdio/command.rs MAX_PROCESSES_PER_CALLER",
        By("a_caller_above_the_process_limit_gets_an_error"),
    ),
    (
        "upstream/stdio/child.rs MAX_WAITING_MESSAGES",
        By("messages_for_a_process_that_does_not_read_are_bounded_in_number"),
    ),
    (
        "upstream/stdio/child.rs MAX_WAITING_BYTES",
        By("messages_for_a_process_that_does_not_read_are_bounded_in_bytes"),
    ),
    ("upstream/stdio/child.rs SIGTERM_DELAY", By("a_process_that_hangs_at_its_start_is_ended_and_killed")),
    ("upstream/stdio/child.rs SIGKILL_DELAY", By("a_process_that_hangs_at_its_start_is_ended_and_killed")),
    ("upstream/stdio/child.rs DESCENDANTS_GRACE", By("descendants_of_a_process_are_killed_after_a_moment")),
    ("upstream/stdio/child.rs KILL_TIMEOUT", By("descendants_of_a_process_are_killed_after_a_moment")),
    ("upstream/stdio/child.rs STDERR_TIMEOUT", Not("a wait; what comes later is not in the log")),
    (
        "upstream/stdio/message_line.rs MAX_BATCH_BYTES",
        Not("a portion: what waits to be written is bounded by `WAITING_BYTES`"),
    ),
    ("upstream/stdio/child.rs STDERR_READ_BYTES", Not("a portion: what is kept of it is bounded by `LINE`")),
    ("upstream/stdio/stderr.rs MAX_LINE_BYTES", By("the_start_of_a_line_without_end_is_kept")),
    ("upstream/stdio/stderr.rs MAX_LAST_LINES", By("the_start_of_a_line_without_end_is_kept")),
    ("upstream/stdio/start_limiter.rs MAX_STARTS", By("starts_in_a_minute_are_bounded")),
    (
        "upstream/stdio/start_limiter.rs MAX_PAUSE",
        By("the_pause_doubles_to_a_minute_and_only_a_steady_server_starts_over"),
    ),
    (
        "upstream/legacy/pool/leases.rs TURN_CHECK_INTERVAL",
        By("an_unanswered_request_ends_after_a_turn_if_another_principal_waits"),
    ),
    ("upstream/legacy/pool/leases.rs TASK_WAIT", By("a_call_shares_the_process_of_a_task_of_its_own_set")),
    ("upstream/stdio/start_limiter.rs FAILURE_LIFETIME", By("failures_of_one_caller_do_not_delay_another")),
    (
        "upstream/stdio/start_limiter.rs MAX_WAIT",
        By("pauses_between_starts_grow_and_a_long_wait_is_an_error"),
    ),
    ("upstream/http/relayed_body.rs QUICK_DRAIN", Not("a wait of nobody: the client has disconnected")),
    ("upstream/transport.rs IDLE_SWEEPS", By("idle_sessions_are_closed_and_the_list_session_last")),
    ("upstream/transport.rs LIST_IDLE_SWEEPS", By("idle_sessions_are_closed_and_the_list_session_last")),
    (
        "upstream/legacy/pool/mod.rs MAX_REOPEN_PAUSE",
        Not("a pause between attempts, which nobody outside lengthens"),
    ),
    (
        "upstream/legacy/negotiation.rs OFFER_LIFETIME",
        By("a_remembered_offer_is_forgotten_after_a_while_and_on_request"),
    ),
    (
        "upstream/legacy/server.rs CHECK_PERIOD",
        By("a_server_is_pinged_once_a_second_whatever_number_of_calls_fail"),
    ),
    ("upstream/legacy/check.rs PING_TIMEOUT", Not("a wait in the background, after which nothing changes")),
    (
        "upstream/legacy/pool/mod.rs RETRY_COOLDOWN",
        By("a_call_that_a_fresh_session_refuses_too_ends_with_the_servers_error"),
    ),
    ("upstream/legacy/handshake.rs GET_STREAM_WAIT", Not("a wait; the call goes out after it")),
    (
        "upstream/http/listen.rs GAP_NOTICE_INTERVAL",
        By("a_gap_is_reported_at_once_and_then_at_bounded_intervals"),
    ),
    ("upstream/http/listen.rs MAX_PAUSE", By("the_pause_before_a_new_stream_is_bounded")),
    ("upstream/http/listen.rs MIN_PAUSE", By("the_pause_before_a_new_stream_is_bounded")),
    ("upstream/http/listen.rs MAX_FRUITLESS", By("the_pause_before_a_new_stream_is_bounded")),
    ("upstream/http/stream_before_call.rs OPENING_WAIT", By("a_call_does_not_wait_for_ever")),
    (
        "upstream/http/stream_before_call.rs REQUEST_WAIT",
        By("a_client_that_opens_no_stream_is_waited_for_briefly"),
    ),
    ("upstream/legacy/emulated/mod.rs MAX_BATCH", By("a_client_of_a_legacy_revision_gets_its_own")),
    ("upstream/legacy/emulated/session.rs MAX_SUBSCRIPTIONS", By("subscriptions_of_a_session_are_bounded")),
    ("upstream/legacy/emulated/session.rs MAX_OPEN_REQUESTS", By("open_requests_outside_calls_are_bounded")),
    ("upstream/legacy/emulated/stream.rs MAX_EVENTS", By("the_last_unread_messages_are_kept")),
    ("upstream/legacy/emulated/stream.rs MAX_EVENT_BYTES", By("the_last_unread_messages_are_kept")),
    ("upstream/legacy/outbound.rs MAX_BEST_EFFORT", By("undelivered_responses_are_bounded")),
    ("upstream/legacy/mailbox.rs MAX_NOTIFICATIONS", By("unread_notifications_are_bounded")),
    ("upstream/legacy/mailbox.rs MAX_BYTES", By("unread_notifications_are_bounded_in_bytes")),
    ("upstream/changes.rs MAX_UNREAD", By("unread_notifications_are_bounded")),
    (
        "upstream/legacy/session.rs MAX_ABANDONED",
        By("a_process_with_cancelled_calls_of_very_many_clients_is_used_by_none_of_them"),
    ),
    ("upstream/legacy/session.rs MAX_CONCURRENT_CANCELS", By("many_calls_over_the_drain_all_get_an_error")),
    (
        "upstream/legacy/outbound.rs QUEUE_WAIT",
        By("a_session_is_deleted_although_its_cancellation_cannot_be_delivered"),
    ),
    (
        "upstream/legacy/session.rs RESUME_WAIT",
        By("an_answer_waits_for_the_stream_of_its_call_but_not_for_ever"),
    ),
    ("upstream/http/resume.rs RETRY_WINDOW", By("a_resumption_fails_ten_seconds_after_the_first_attempt")),
    ("upstream/http/resume.rs MAX_FRUITLESS", By("the_pauses_of_a_resumption_are_bounded")),
    ("upstream/http/resume.rs MAX_PAUSE", By("the_pauses_of_a_resumption_are_bounded")),
    ("upstream/http/resume.rs MIN_RETRY_PAUSE", By("the_pauses_of_a_resumption_are_bounded")),
    ("upstream/legacy/attribution.rs MAX_UPDATE_BYTES", By("a_too_large_resource_update_is_not_delivered")),
    (
        "upstream/legacy/attribution.rs MAX_OPEN_REQUESTS",
        By("a_call_with_endless_input_requests_fails_and_other_calls_are_served"),
    ),
    // The process.
    (
        "telemetry/log.rs MAX_BUFFERED_BYTES",
        By("a_stalled_log_reader_delays_no_call_and_missed_lines_are_counted"),
    ),
    ("cli/report/log.rs MAX_LINE_BYTES", By("lines_of_others_are_counted_and_long_ones_take_no_memory")),
    ("front/layers/access_entry.rs MAX_TASK_ID", By("no_line_has_the_id_of_a_task_or_of_a_session_whole")),
    ("task/history.rs MAX_ENTRIES", By("a_long_history_keeps_the_first_and_the_last_entries_and_counts_all")),
    ("telemetry/metrics/tools.rs MAX_TOOLS", By("tools_beyond_the_limit_are_counted_as_other")),
    ("telemetry/metrics/tools.rs MAX_LISTED", By("the_number_of_listed_names_is_bounded")),
    ("telemetry/log.rs FINAL_FLUSH_LIMIT", By("the_final_flush_has_a_time_limit")),
    ("telemetry/log.rs FLUSH_INTERVAL", Not("a wait of a line, which holds up nobody")),
    ("telemetry/line.rs MAX_VALUE_BYTES", By("long_values_are_truncated_in_the_log")),
    ("runtime/private_key.rs MAX_PEM", By("tls_settings_are_read_and_their_problems_have_their_place")),
    ("config/schema/yaml.rs MAX_FILE_BYTES", By("a_configuration_without_end_or_bottom_is_refused")),
    ("config/schema/secret.rs MAX_SECRET_FILE_BYTES", By("a_configuration_without_end_or_bottom_is_refused")),
    (
        "config/schema/secret.rs MIN_TOKEN_LENGTH",
        By("a_token_that_cannot_be_used_is_named_by_its_place_and_never_shown"),
    ),
    (
        "config/build/access.rs MAX_TOKEN_NAME",
        By("a_token_that_cannot_be_used_is_named_by_its_place_and_never_shown"),
    ),
    ("config/schema/values.rs MAX_DURATION", By("a_configuration_without_end_or_bottom_is_refused")),
    ("config/schema/yaml.rs MAX_DEPTH", By("a_configuration_without_end_or_bottom_is_refused")),
    ("config/schema/yaml.rs MAX_NODES", By("aliases_of_aliases_do_not_grow_without_bound")),
    ("telemetry/trace/otlp/mod.rs QUEUE", By("spans_are_dropped_and_counted_while_a_collector_stalls")),
    ("telemetry/trace/otlp/mod.rs BATCH", By("spans_are_sent_in_batches_by_time_and_size")),
    ("telemetry/trace/otlp/mod.rs RETRIES", By("exports_are_retried_and_losses_are_logged_once_a_minute")),
    ("telemetry/trace/otlp/mod.rs MAX_RETRY_DELAY", By("a_collector_can_request_a_longer_pause")),
    ("telemetry/trace/otlp/collector.rs MAX_RESPONSE_BYTES", By("an_endless_response_is_not_read")),
    (
        "telemetry/trace/otlp/collector.rs MAX_REASON_CHARS",
        Not("the beginning of a text; how often it is told is bounded"),
    ),
    ("telemetry/trace/span.rs MAX_EVENTS", By("a_span_has_a_limited_number_of_events_and_links")),
    ("telemetry/trace/span.rs MAX_LINKS", By("a_span_has_a_limited_number_of_events_and_links")),
    ("telemetry/trace/mcp.rs MAX_ATTRIBUTE_CHARS", By("attributes_that_clients_choose_are_truncated")),
    ("telemetry/trace/mcp.rs TASK_TAG_CHARS", By("attributes_that_clients_choose_are_truncated")),
    ("protocol/trace_context.rs MAX_STATE_CHARS", By("headers_are_read_as_meta_is")),
    ("app/mod.rs SPAN_FLUSH_TIMEOUT", By("a_collector_that_stalls_keeps_neither_a_call_nor_the_end_waiting")),
    ("app/mod.rs FINAL_TIMEOUT", Not("a wait at the end of the process, which nobody outside lengthens")),
    // What runs for one user, at whose terminal it shows.
    ("client/http_transport.rs MAX_MESSAGE", Not(OF_ONE_USER)),
    ("client/message.rs MAX_ERROR_TEXT", Not(OF_ONE_USER)),
    ("client/tools.rs MAX_PAGES", By("pages_are_read_until_the_last_or_until_a_cursor_repeats")),
    ("client/tools.rs MAX_TOOLS", By("pages_are_read_until_the_last_or_until_a_cursor_repeats")),
    ("client/ticket.rs MAX_TICKET", By("a_result_that_no_proxy_writes_is_not_a_ticket")),
    ("client/ticket.rs MAX_POLLS", Not("half a second each at least: hours, which a test does not wait for")),
    ("cli/call.rs MAX_ROUNDS", By("endless_input_requests_cancel_the_call")),
    ("client/mod.rs MIN_POLL_INTERVAL", Not(OF_ONE_USER)),
    ("client/mod.rs MAX_LOST_POLLS", Not(OF_ONE_USER)),
    ("client/legacy/resume.rs MAX_EMPTY_RESUMPTIONS", Not(OF_ONE_USER)),
    ("client/legacy/resume.rs ATTEMPTS", Not(OF_ONE_USER)),
    ("client/legacy/streams.rs ATTEMPTS", Not(OF_ONE_USER)),
    ("client/legacy/streams.rs MAX_QUEUED", Not(OF_ONE_USER)),
    ("client/legacy/streams.rs OPEN_TIMEOUT", Not(OF_ONE_USER)),
    ("client/legacy/handshake.rs CLOSE_TIMEOUT", Not(OF_ONE_USER)),
    ("cli/call.rs CANCEL_TIMEOUT", Not(OF_ONE_USER)),
    ("cli/ask/terminal.rs MAX_LINE", By("a_line_that_is_not_utf8_or_too_long_is_an_error")),
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
