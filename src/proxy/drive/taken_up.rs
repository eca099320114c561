//! A task's call that the process before this one has held, gone on with where it is now.

use super::{
    CallSpan, Driver, Exchange, Form, Held,
    book::{Book, Way},
    canonical::{Canonical, Server},
    deadlines,
    native::Native,
};
use crate::{
    bridge::exchange::Manner,
    dialect::{Call, Caller, ClientInfo, Credentials, Further, Principal},
    protocol::{Capabilities, Frame, Id, InputRequest, InputResponses, Method},
    proxy::{
        anchor::{Anchor, Words},
        ledger::Custody,
        orphan_report::OrphanFate,
        session::Key,
        shared::Shared,
    },
    task::{Answer, Record, State, view::experimental::Reader},
    telemetry::CallOrigin,
    upstream::{Asked, Deferral, Identity, TakenUp},
};
use bytes::Bytes;
use std::{sync::Arc, time::Instant};

/// Goes on with a task's call, in the background; nothing is called. Where that cannot be, gives back the place of
/// the task: its server is none that it can be done with, or an answer may not have reached it and cannot be given to it any more.
pub(in crate::proxy) fn take_up(
    shared: &Arc<Shared>,
    (custody, fate): (Custody, OrphanFate),
    record: &Record,
    anchor: &Anchor,
    credentials: Credentials,
) -> Result<(), (Custody, OrphanFate)> {
    let Some(Left { open: asked, undelivered, forgotten }) = Left::by(record, anchor) else {
        return Err((custody, fate));
    };
    let principal = Principal::from_bytes(record.owner.principal);
    let declared = match &anchor.words {
        Words::Canonical { declared } => Capabilities::read(Bytes::copy_from_slice(declared.as_bytes())),
        Words::Native { .. } => Ok(Capabilities::none()),
    };
    let Ok(capabilities) = declared.map(Arc::new) else { return Err((custody, fate)) };
    // Its session has been opened already.
    let caller = Identity { principal, credentials, capabilities, client_info: ClientInfo::default() };
    let deferral = Deferral::new(true);
    deferral.comes();
    let mut ids: Vec<_> = asked.iter().map(|question| question.id.clone()).collect();
    ids.extend(undelivered.iter().map(|answered| answered.id.clone()));
    // The server has the answers to the others, and may say those questions again all the same.
    for id in anchor.questions.iter().filter_map(|(token, _)| id_of(token)) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let taken_up = shared.upstream.take_up(&caller, &anchor.call, ids, deferral.clone());
    let Some(TakenUp { replies, open: ways, elsewhere }) = taken_up else { return Err((custody, fate)) };
    let mut ways = ways.into_iter();

    let policy = shared.route.treatment(&record.tool);
    let mut book = Book::new(&shared.route.path, &policy.keys, InputResponses::default());
    book.has_used(&record.keys_used);
    for (question, way) in asked.into_iter().zip(ways.by_ref()) {
        let origin = CallOrigin { principal: principal.to_string(), tool: record.tool.to_string() };
        book.restore(question.key, question.asked, question.id, Way::Answer(way), origin);
    }
    let mut answered = Vec::new();
    for (Undelivered { key, id, answer }, way) in undelivered.into_iter().zip(ways.by_ref()) {
        // The server may have it already: it waits for none under this id then.
        way.send(answer);
        answered.push((id, key));
    }
    ways.for_each(|way| way.withdrawn());
    let (manner, form) = match &anchor.words {
        Words::Canonical { .. } => {
            let began = shared.clock.now();
            (Manner::Rounds, Form::Canonical(canonical(caller, record, anchor, deferral, began)))
        }
        Words::Native { session, wants_progress } => {
            let session = session.map(Key::from_digest);
            let begin = |(key, call)| shared.sessions.in_flight.begin(key, anchor.call.call, None, call);
            let native = Native {
                owner: record.owner.clone(),
                session,
                tool: record.tool.to_string(),
                ttl: None,
                wants_progress: *wants_progress,
                view: record.view,
                // Its client has its handle.
                reader: Reader::Published,
                ticketing: None,
                said: None,
                deferral,
                needs_credentials: anchor.needs_credentials,
                _in_flight: session.zip(elsewhere).map(begin),
                began: shared.clock.now(),
                told: record.state.status(),
            };
            (Manner::Stream, Form::Native(Box::new(native)))
        }
    };
    let limits = shared.limited(&record.tool, principal, None);
    let (replies, _) = match &limits {
        Some(limits) => limits.limit(None, replies, &shared.clock),
        None => (replies, None),
    };
    let hold = shared.switchboard.hold_as(record.id.clone());
    let mut driver = Box::new(Driver {
        shared: Arc::clone(shared),
        exchange: Exchange::of_a_task(manner, deadlines(shared, None, record.view)),
        replies: Some(replies),
        limits,
        // It is at the server already, whoever else is.
        dequeued: None,
        observed: None,
        turns: 0,
        policy,
        held: Some(Held::with(hold, book)),
        form,
        span: CallSpan::of_record(shared, record, anchor.call.call),
    });
    driver.held().task = Some(custody);
    driver.held().restored(anchor.call.clone(), answered, shared.clock.now(), fate);
    driver.is_task();
    if let (Form::Native(_), Some(Held { book, lines: Some(lines), .. })) =
        (&driver.form, driver.held.as_deref_mut())
    {
        book.asks().into_iter().for_each(|ask| lines.ask(ask, false));
    }
    for key in forgotten {
        driver.is_taken_back(key);
    }
    shared.stopping.spawn(driver.run());
    Ok(())
}

/// What is asked in a task, as the process that goes on with it finds it.
pub struct Left {
    /// What can be answered.
    pub open: Vec<Open>,
    /// Answers that the server may not have.
    pub undelivered: Vec<Undelivered>,
    /// The keys of what is asked, or answered, and reaches nobody: the server has taken it back, or nobody knows any
    /// more what the server calls it.
    pub forgotten: Vec<String>,
}

/// A question that was open.
pub struct Open {
    pub key: String,
    pub id: Id,
    pub asked: Asked,
}

/// An answer that the server may not have.
pub struct Undelivered {
    pub key: String,
    pub id: Id,
    pub answer: Answer,
}

// === impl Left ===

impl Left {
    /// By what is kept of the task and of its call. `None` where an answer cannot be delivered, as it is not known what
    /// the server calls its question.
    pub fn by(record: &Record, anchor: &Anchor) -> Option<Self> {
        let undelivered = undelivered(record, anchor)?;
        let open = open(record, anchor);
        let mut forgotten = forgotten(record, &open);
        forgotten.extend(record.undelivered.keys().filter(|key| anchor.taken_back.contains(key)).cloned());
        Some(Self { open, undelivered, forgotten })
    }
}

fn id_of(token: &str) -> Option<Id> {
    Id::from_token(Bytes::copy_from_slice(token.as_bytes()))
}

/// The answers that the server may not have. `None` where one of them cannot be delivered, as it is not known what
/// the server calls its question.
fn undelivered(record: &Record, anchor: &Anchor) -> Option<Vec<Undelivered>> {
    let answered = |(key, answer): (&String, &Answer)| {
        let (token, _) = anchor.questions.iter().find(|(_, known)| known == key)?;
        let id = id_of(token)?;
        Some(Undelivered { key: key.clone(), id, answer: answer.clone() })
    };
    let is_wanted = |(key, _): &(&String, &Answer)| !anchor.taken_back.contains(key);
    record.undelivered.iter().filter(is_wanted).map(answered).collect()
}

/// The questions that are open.
fn open(record: &Record, anchor: &Anchor) -> Vec<Open> {
    let none = Default::default();
    let outstanding = match &record.state {
        State::InputRequired { outstanding } => outstanding,
        State::Working | State::Completed { .. } | State::Failed { .. } | State::Cancelled => &none,
    };
    let question = |(token, key): &(String, String)| {
        let id = id_of(token)?;
        let request = outstanding.get(key)?;
        let asked = match anchor.words {
            Words::Canonical { .. } => Asked::Canonical(InputRequest::from_raw(request.clone())?),
            // The members of `request` are those of the message but for two.
            Words::Native { .. } => {
                let head = format!(r#"{{"jsonrpc":"2.0","id":{token},"#);
                Asked::Native(Frame::parse([head.as_bytes(), request.get(1..)?].concat().into()).ok()?)
            }
        };
        Some(Open { key: key.clone(), id, asked })
    };
    let mut open: Vec<Open> = Vec::new();
    for question in anchor.questions.iter().filter_map(question) {
        if open.iter().all(|known| known.key != question.key) {
            open.push(question);
        }
    }
    open
}

/// The keys under which something is asked that is not open any more: the anchor knows nothing of it, or it cannot be
/// read.
fn forgotten(record: &Record, open: &[Open]) -> Vec<String> {
    let State::InputRequired { outstanding } = &record.state else { return Vec::new() };
    let is_open = |key: &&String| open.iter().any(|open| open.key == **key);
    outstanding.keys().filter(|key| !is_open(key)).cloned().collect()
}

fn canonical(
    caller: Identity,
    record: &Record,
    anchor: &Anchor,
    deferral: Deferral,
    began: Instant,
) -> Canonical {
    let Identity { principal, credentials, capabilities, client_info } = caller;
    let call = Call {
        bytes: Bytes::new(),
        id: Id::from_number(anchor.call.call),
        method: Method::ToolsCall,
        params: None,
        target: Some(record.tool.to_string()),
        progress_token: None,
        log_level: None,
        headers: Further::default(),
        client_info: client_info.clone(),
        trace: None,
    };
    Canonical {
        call: Arc::new(call),
        caller: Arc::new(Caller {
            principal,
            credentials,
            capabilities,
            client_info,
            signs: None,
            standing: Default::default(),
        }),
        server: Server::default(),
        binding: None,
        refused: None,
        supplied: InputResponses::default(),
        deferral: Some(deferral),
        ticketing: None,
        said: None,
        began,
    }
}
