//! Calls of the tools that take a ticket, by clients of 2026-07-28 that do not declare the tasks extension.
//!
//! What the running call asks is asked as that revision has it: the waiting call is answered with the questions, and its
//! client calls again with the answers (2026-07-28, *Multi Round-Trip Requests*). The ticket says which call is meant,
//! so that no `requestState` is needed.

use super::{
    Item, Reply,
    answers::{
        extension,
        ticket::{Answer, Holder, Next, Watch, answer},
    },
    conversation::Conversation,
    reply,
    shared::Shared,
    tickets,
};
use crate::{
    bridge::elicit,
    dialect::{Call, Caller, modern},
    protocol::{ErrorObject, Frame, Heartbeat, InputRequest},
    task::{Record, State, view},
    telemetry::Outcome,
    upstream::CallError,
};
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use std::sync::Arc;

/// One call of such a tool.
pub(super) struct TicketCall {
    shared: Arc<Shared>,
    call: Arc<Call>,
    caller: Caller,
    stage: Stage,
}

enum Stage {
    Fresh,
    Waits(Box<Watch>, Option<Heartbeat>),
    Ended,
}

// === impl TicketCall ===

impl TicketCall {
    pub(super) fn new(shared: Arc<Shared>, call: Arc<Call>, caller: Caller) -> Self {
        Self { shared, call, caller, stage: Stage::Fresh }
    }

    /// What is said at once; nothing where the result is waited for.
    async fn begin(&mut self) -> Option<Reply> {
        let (shared, call, caller) = (&self.shared, &self.call, &self.caller);
        let tool = call.target.as_deref().unwrap_or_default();
        let Some((wanted, names)) = tickets::wanted_by(shared, call, caller, tool) else {
            return Some(self.said(view::ticket::unknown()));
        };
        let holder = Holder {
            owner: shared.owner(caller),
            principal: caller.principal,
            names: &names,
            wait: tickets::wait(shared, tickets::holding_of(shared, call, caller)),
            hears: false,
        };
        match answer(shared, holder, wanted, call.params.as_ref()).await {
            Answer::Said(result, account) => Some(Reply { account, ..self.said(result) }),
            Answer::About(record, result, account) => {
                Some(Reply { account, ..self.said_of(&record, result) })
            }
            Answer::Waits(watch) => {
                let answers =
                    call.params.as_ref().is_some_and(|params| params.get("inputResponses").is_some());
                if answers && let Err(refusal) = extension::answered(shared, call, watch.record()).await {
                    return Some(*refusal);
                }
                let heartbeat = call.progress_token.clone().map(|token| Heartbeat::new(token, true));
                self.stage = Stage::Waits(watch, heartbeat);
                None
            }
        }
    }

    fn said(&self, result: Value) -> Reply {
        reply::success(&self.call, &modern::complete(result, &self.shared.server().server_info))
    }

    /// The same, about a call whose server is known.
    fn said_of(&self, record: &Record, result: Value) -> Reply {
        reply::success(&self.call, &modern::complete(result, &self.shared.server_info_of(record)))
    }

    /// Exactly what the call would have been answered with.
    fn ended(&self, record: &Record, result_tool: &str) -> Reply {
        let mut reply = match view::ticket::outcome(record, true) {
            Some(view::ticket::Outcome::Result(result)) => reply::success(&self.call, &result),
            Some(view::ticket::Outcome::Error(error)) => {
                let mut refused = reply::refuse(&self.call, StatusCode::OK, &ErrorObject::from_raw(error));
                refused.account.outcome = Outcome::ServerError;
                refused
            }
            Some(view::ticket::Outcome::Cancelled) | None => {
                self.said_of(record, view::ticket::over(record, result_tool))
            }
        };
        reply.account.shown = Some(record.state.status());
        reply.account.origin = record.trace.clone();
        reply
    }

    /// What the running call asks, all of which this client can be asked.
    fn asked(&self, record: &Record) -> Option<Reply> {
        let State::InputRequired { outstanding } = &record.state else { return None };
        let question =
            |(key, raw): (&String, &Bytes)| Some((key.clone(), InputRequest::from_raw(raw.clone())?));
        let questions: Vec<_> = outstanding.iter().filter_map(question).collect();
        let questions = questions.iter().map(|(key, question)| (key.as_str(), question));
        let ticket = self.shared.keyring.ticket(&record.id);
        let result = elicit::input_required(questions, &ticket, &self.shared.server_info_of(record));
        Some(reply::input_required(&self.call, &result))
    }
}

impl Conversation for TicketCall {
    async fn next(&mut self) -> Option<Item> {
        if matches!(self.stage, Stage::Fresh)
            && let Some(reply) = self.begin().await
        {
            self.stage = Stage::Ended;
            return Some(reply.into());
        }
        loop {
            let Stage::Waits(watch, heartbeat) = &mut self.stage else { return None };
            let reply = match watch.next().await {
                Next::Said(_) => continue,
                Next::Progress(message) => match heartbeat.as_mut().and_then(|beat| beat.tell(&message)) {
                    Some(beat) => return Some(Item::Notification(beat)),
                    None => continue,
                },
                Next::Asked(record) => {
                    let declared = &self.caller.capabilities;
                    let can = |method: &_, params: Option<&_>| declared.missing_for(method, params).is_none();
                    if watch.decline(&record, can).await {
                        continue;
                    }
                    match self.asked(&record) {
                        Some(reply) => reply,
                        None => continue,
                    }
                }
                Next::Ended(record, commit) => {
                    let names = Arc::clone(&watch.ticketing.names);
                    Reply { commit: Some(commit), ..self.ended(&record, &names.result) }
                }
                Next::Runs(record) => {
                    let running = watch.running(&record);
                    let mut reply = self.said_of(&record, running);
                    reply.account.shown = Some(record.state.status());
                    reply.account.origin = record.trace.clone();
                    reply
                }
                Next::Gone => self.said(view::ticket::unknown()),
                Next::Closing => {
                    let error = reply::lost_error(&CallError::Closing);
                    reply::refuse(&self.call, StatusCode::OK, &error)
                }
            };
            self.stage = Stage::Ended;
            return Some(reply.into());
        }
    }
}

/// What a list of tools becomes for a client that gets tickets.
pub(super) fn lists(shared: &Shared, call: &Call, caller: &Caller, reply: &mut Reply) {
    let Some(holding) = tickets::holding_of(shared, call, caller) else { return };
    let edited = Frame::parse(reply.body.clone()).ok();
    if let Some(edited) =
        edited.and_then(|answer| tickets::list(shared, &answer, (holding, &caller.standing), |_| true))
    {
        reply.body = edited;
    }
}
