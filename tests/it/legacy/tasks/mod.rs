//! Tasks of 2025-11-25 in front of a server that has none.
//!
//! What the revision's page *Tasks* asks of a receiver, by its sections and their numbers, and what
//! holds it. A capital letter is a section: **C**apabilities, **S**upport and Handling, **I**ds, Status
//! **L**ifecycle, Input **R**equired, **T**TL, **F**etching results, **A**ssociating messages,
//! **N**otifications, **P**rogress, **G**athering a list, **X** for cancellation, **E**rrors, **Z** for
//! security and resources.
//!
//! | | requirement | held by |
//! |---|---|---|
//! | C 1 | MUST declare `tasks` | [`policies`]: `tasks_are_offered_*` (golden) |
//! | C 2 | a tool that is not `optional` or `required`, called as a task: SHOULD `-32601` | `a_tool_that_is_never_a_task_refuses_to_be_one_and_takes_plain_calls` |
//! | C 3 | a `required` tool, called plainly: MUST `-32601` | `a_tool_that_must_be_a_task_refuses_a_plain_call_in_every_revision` |
//! | S 1 | not declared: MUST process normally and ignore the wish | `nothing_is_offered_*`, `a_server_that_has_tasks_of_its_own_is_left_alone` |
//! | I 1, I 2 | MUST be a string, made by the receiver | [`lifecycle`]: `task_ids_are_unguessable_texts` |
//! | I 3 | MUST be unique | the same, and [`ids`]: `a_request_may_have_any_id_and_it_may_be_used_again` |
//! | L 1 | MUST begin as `working` | `a_task_begins_to_work_and_is_answered_before_its_server_answers` |
//! | L 2 | MUST move along the paths alone | `a_task_is_whole_in_every_answer_and_moves_only_as_it_may`; all states and events: `tests/it/task_machine/mod.rs` |
//! | L 3 | MUST NOT leave an end | [`task_cancel`]: `a_cancelled_task_stays_cancelled_whatever_its_server_says`, `a_task_that_has_ended_cannot_be_cancelled` |
//! | R 1 | SHOULD move to `input_required` | [`input_requests`]: `an_input_request_is_sent_at_once_*` |
//! | R 2 | MUST name the task in the request | the same, `every_kind_of_input_request_is_relayed_unchanged` |
//! | R 4 | SHOULD leave `input_required` | `several_input_requests_are_open_at_once_and_answered_in_any_order` |
//! | T 1, T 2 | MUST give `createdAt`, `lastUpdatedAt` | `a_task_is_whole_in_every_answer_and_moves_only_as_it_may` |
//! | T 4 | MUST give the actual `ttl` | `the_requested_ttl_is_granted_within_the_configured_bounds` |
//! | F 1 | MUST return a `CreateTaskResult`, SHOULD as soon as possible | `a_task_begins_to_work_and_is_answered_before_its_server_answers` |
//! | F 2 | MUST give the final result of an ended task | [`results`]: `after_the_end_the_result_is_one_document_for_every_request` |
//! | F 3 | MUST block before | `tasks_result_waits_for_the_end` |
//! | F 4 | MUST give exactly what the request would have given | `a_result_is_the_servers_*`, `an_error_is_the_servers` |
//! | A 1 | MUST name the task in everything that is related to it | [`input_requests`], [`ids`]: `other_notifications_of_the_server_are_relayed` |
//! | A 2 | MUST go by `params.taskId`, SHOULD NOT name it in the answers of get, list and cancel | `the_task_is_the_one_that_the_params_name` |
//! | N 3 | SHOULD NOT name it in `notifications/tasks/status` | `a_task_is_whole_in_every_answer_and_moves_only_as_it_may` |
//! | P | the token holds for the task's whole life | `progress_under_the_clients_own_token_is_relayed_for_the_whole_life_of_the_task` |
//! | G 1, G 2 | SHOULD page, MUST give `nextCursor` | `a_list_has_pages_and_every_task_once` |
//! | G 4 | what can be fetched MUST be listed | the same, and [`isolation`]: `sees`; without credentials in its own session alone, for nothing else tells whose it is |
//! | X 1 | MUST refuse ended ones with `-32602` | `a_task_that_has_ended_cannot_be_cancelled` |
//! | X 2 | SHOULD stop the work, MUST be `cancelled` before the answer | `a_cancelled_task_is_cancelled_at_the_server_once_and_its_session_lives` |
//! | X 3 | MUST stay `cancelled` | `a_cancelled_task_stays_cancelled_whatever_its_server_says` |
//! | E 1 | unknown task: MUST `-32602` | [`isolation`]: `sees_nothing`, `the_task_is_the_one_that_the_params_name` |
//! | E 2 | unknown cursor: MUST `-32602` | `a_list_has_pages_and_every_task_once` |
//! | E 4 | internal errors: MUST `-32603` | [`store_failures`]: `what_the_store_does_not_take_is_an_internal_error` |
//! | E 5 | SHOULD be informative | the words are read wherever a code is |
//! | E 6 | a failed task SHOULD say why | `a_tool_error_is_a_failed_task_with_its_message_and_result`, `fails` |
//! | Z 1 | MUST bind tasks to the caller; MUST reject and not list those of others | [`isolation`] |
//! | Z 2 | else ids MUST have entropy | `task_ids_are_unguessable_texts` |
//! | Z 3 | who cannot tell callers apart SHOULD NOT declare `list` | `without_credentials_or_sessions_*` |
//! | Z 4 | SHOULD limit rates | `polls_and_misses_over_the_limit_get_an_error` |
//! | Z 5 | SHOULD limit the tasks of a caller, and `ttl` | `a_task_over_the_limit_is_refused_with_the_limit`, `the_requested_ttl_is_granted_*` |
//! | Z 6 | SHOULD clean up | `no_memory_is_kept_of_ended_tasks`; what has outlived its time: the sweeper's own tests, as the shortest life is a minute |
//! | Z 7 | SHOULD log what is made, ended and fetched | `the_life_of_a_task_is_logged` |
//! | Z 8 | SHOULD document limits | not by a test: the manual's chapter on tasks, and the configuration's |

mod ids;
mod input_requests;
mod isolation;
mod lifecycle;
mod policies;
mod results;
mod session_delete;
mod session_stream_requests;
mod store_failures;
mod streams;
mod task_cancel;
mod task_client;
