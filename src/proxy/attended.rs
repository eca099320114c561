//! A call whose client waits: polled in place, by the connection it came in on.
//!
//! This is the loop that joins one [`Exchange`] to the world while its client is attached. When
//! the exchange decides that the call becomes a task, the upstream stream and the exchange move on
//! to [`super::held`], and what is left here only passes on what comes from there. So it is when the
//! server asks something that can be put to the client, and a client that comes back to a parked call
//! goes there at once. Dropping an
//! [`Attended`] is how a client's departure is heard: the upstream stream goes with it, which
//! cancels the call at the server; after the move, the other side notices the closed channel.

use super::{
    Item, Reply,
    asking::{self, Came},
    endpoint::{Conversation, Shared},
    held::{First, HandedOver, Held},
    reply,
    reply::Word,
};
use crate::{
    bridge::{Action, Exchange, Plan, catalogue, exchange::Patience, plan, raise},
    dialect::{Call, Caller},
    policy::Treatment,
    protocol::{ErrorObject, Frame, InputResponses, Method, code, headers},
    telemetry::WouldDefer,
    upstream::{Deferral, Description, Event, Identity, Lost, Replies, Request},
};
use futures_util::{StreamExt, future::ready, stream};
use http::StatusCode;
use serde_json::Value;
use std::{
    future::pending,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, time::sleep_until};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// One call and its client.
pub(super) struct Attended {
    shared: Arc<Shared>,
    call: Arc<Call>,
    caller: Arc<Caller>,
    stage: Stage,
    /// Time spent waiting for the server.
    waited: Duration,
    /// A stopping proxy waits for the call, until somebody else holds it.
    work: Option<TaskTrackerToken>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the one that is used, and a box would cost every call"
)]
enum Stage {
    /// Nothing has been done yet.
    Fresh,
    Inline(Inline),
    /// The call is on its way to become a task; what is still for the client comes from there.
    Moved {
        items: mpsc::Receiver<Item>,
        since: Instant,
    },
    Ended,
}

/// Who the server is, or the refusal of a call that it does not serve.
type Prepared = Result<Arc<Description>, Box<Reply>>;

/// The server of a call, once it has spoken.
#[derive(Clone, Default)]
pub(super) struct Server(Arc<OnceLock<Arc<Description>>>);

struct Inline {
    exchange: Exchange<Word>,
    replies: Replies,
    server: Server,
    treatment: Treatment,
    observed_after: Option<Duration>,
    refused: Option<Value>,
    supplied: InputResponses,
    /// Tells the upstream when the call has become a task, where it may.
    deferral: Option<Deferral>,
}

// === impl Attended ===

impl Attended {
    pub(super) fn new(shared: Arc<Shared>, call: Call, caller: Caller) -> Self {
        Self {
            work: Some(shared.stopping.work()),
            shared,
            call: Arc::new(call),
            caller: Arc::new(caller),
            stage: Stage::Fresh,
            waited: Duration::ZERO,
        }
    }

    /// Everything up to the moment the call is sent. The threshold counts from before that. A handshake
    /// or a list that takes longer does not hold up the handle: the call is then a task before it is sent.
    async fn start(&mut self) -> Result<(), Box<Reply>> {
        let treatment = self.shared.route.treatment(self.call.target.as_deref().unwrap_or_default());
        let planned = plan(&self.call, &self.caller, &treatment);
        let came = match self.call.method.may_ask() {
            true => asking::came_with(&self.shared, &self.caller, &self.call),
            false => Ok(Came::Fresh(InputResponses::default())),
        };
        let began = self.shared.clock.now();
        // A client that comes back waits for its call, wherever that is.
        let is_back = matches!(came, Ok(Came::Back(..)));
        let due = match (&planned, &came) {
            (Plan::Defer { after }, Ok(Came::Fresh(_) | Came::Again)) => Some(began + *after),
            _ => None,
        };
        let mut preparing =
            Box::pin(prepare(Arc::clone(&self.shared), Arc::clone(&self.call), Arc::clone(&self.caller)));
        let prepared = match is_back {
            // Its server was asked when the call was made, and may be gone: what has become of the call is
            // known to whoever holds it.
            true => None,
            false => tokio::select! {
                biased;
                prepared = &mut preparing => Some(prepared),
                () = reached(due) => None,
                () = self.shared.overdue.stopped() => return Err(Box::new(self.closing())),
            },
        };
        if is_back && self.call.method == Method::ToolsCall {
            check_mirrored(&self.shared, &self.call, &self.caller).await?;
        }
        self.waited += self.shared.clock.now() - began;
        let server = Server::default();
        if let Some(prepared) = prepared {
            server.learn(prepared?);
        }
        let (defer_after, observed_after) = match planned {
            Plan::Hold => (None, None),
            Plan::Observe { after } => (None, Some(after)),
            Plan::Defer { after } => (Some(after), None),
            Plan::Refuse(error) => {
                return Err(Box::new(reply::refuse(&self.call, StatusCode::BAD_REQUEST, &error)));
            }
        };
        let supplied = match came? {
            Came::Fresh(answers) => answers,
            Came::Again => InputResponses::default(),
            Came::Back(id, answers) => {
                let (shared, caller, call) = (&self.shared, &self.caller, &self.call);
                let items = asking::rejoin(shared, caller, call, &id, answers, defer_after).await?;
                self.moved(items);
                return Ok(());
            }
        };
        let is_late = !server.is_known();
        let (shared, call, caller) = (&self.shared, &self.call, &self.caller);
        let deferral = defer_after.map(|_| Deferral::default());
        let replies = match is_late {
            false => shared.upstream.call(request(shared, call, caller, deferral.clone())),
            true => prepared_later(preparing, shared, call, caller, &server, deferral.clone()),
        };
        let patience = Patience {
            defer_after,
            settle: self.shared.route.questions.settle,
            park: self.shared.route.questions.park,
        };
        let exchange = Exchange::new(patience, began);
        self.stage = Stage::Inline(Inline {
            exchange,
            replies,
            server,
            treatment,
            observed_after,
            refused: None,
            supplied,
            deferral,
        });
        Ok(())
    }

    /// Waits for one thing to happen to the call. Gives what it means for the client, if anything.
    async fn step(&mut self) -> Option<Item> {
        let Stage::Inline(inline) = &mut self.stage else { return None };
        let began = self.shared.clock.now();
        tokio::select! {
            // A result that is there at the deadline is a result: a handle would only cost a poll.
            biased;
            event = inline.replies.next() => {
                self.waited += self.shared.clock.now() - began;
                match event.unwrap_or(Event::Lost(Lost::SessionEnded)) {
                    Event::Notice(frame) => return raise::notice(&self.call, &frame).map(Item::Notice),
                    Event::Question(question) => {
                        if self.caller.capabilities.can_be_asked() {
                            self.hand_over(First::Question(question));
                        } else {
                            asking::may_be_put(&self.caller, question, &mut inline.refused);
                        }
                        return None;
                    }
                    Event::Withdrawn { .. } => {}
                    Event::Final(frame) => inline.exchange.handle_final(Word::Said(frame)),
                    Event::Lost(lost) => inline.exchange.handle_final(Word::Lost(lost)),
                }
            }
            () = reached(inline.exchange.poll_timeout()) => {
                let now = self.shared.clock.now();
                self.waited += now - began;
                inline.exchange.handle_timeout(now);
            }
            // What is left of the call is dropped with it, which cancels it at the server.
            () = self.shared.overdue.stopped() => {
                self.waited += self.shared.clock.now() - began;
                inline.exchange.handle_final(Word::Lost(Lost::Closing));
            }
        }
        match inline.exchange.poll_action() {
            None => None,
            Some(Action::Reply(word)) => {
                let binding = || asking::binding(&self.shared, &self.caller, &self.call);
                let reply = asking::again(
                    &self.shared,
                    &self.caller,
                    &self.call,
                    &inline.server.known(),
                    binding,
                    &word,
                );
                let reply = reply.unwrap_or_else(|| {
                    reply::to_client(
                        &self.call,
                        &self.shared.route,
                        &inline.server.known(),
                        word,
                        inline.refused.as_ref(),
                    )
                });
                self.observe();
                Some(self.last(reply))
            }
            Some(Action::Store) => {
                self.hand_over(First::Store);
                None
            }
            Some(
                Action::Ask(_)
                | Action::ReplyTask
                | Action::AskInTask(_)
                | Action::WithdrawInTask(_)
                | Action::Decline(_)
                | Action::Settle(_)
                | Action::Forget
                | Action::CancelUpstream,
            ) => unreachable!("an attended exchange is handed over first, and its departure is a drop"),
        }
    }

    /// From here on the call is held by a runtime task of its own.
    fn hand_over(&mut self, first: First) {
        let Stage::Inline(inline) = std::mem::replace(&mut self.stage, Stage::Ended) else { return };
        // A few: what the client does not take must wait at the server, not here.
        let (items, received) = mpsc::channel(8);
        Held::take_over(
            &self.shared,
            HandedOver {
                call: Call::clone(&self.call),
                caller: Caller::clone(&self.caller),
                server: inline.server,
                treatment: inline.treatment,
                exchange: inline.exchange,
                replies: inline.replies,
                refused: inline.refused,
                supplied: inline.supplied,
                deferral: inline.deferral,
                items,
                first,
            },
        );
        // Nothing of it is needed here any more, and it may be megabytes.
        self.call = Arc::new(self.call.without_bytes());
        self.moved(received);
    }

    /// What is still for the client comes from elsewhere.
    fn moved(&mut self, items: mpsc::Receiver<Item>) {
        self.stage = Stage::Moved { items, since: self.shared.clock.now() };
        self.work = None;
    }

    /// The proxy's time is over before the call was sent.
    fn closing(&self) -> Reply {
        let unknown = Description::unknown();
        reply::to_client(&self.call, &self.shared.route, &unknown, Word::Lost(Lost::Closing), None)
    }

    fn last(&mut self, mut reply: Reply) -> Item {
        reply.account.upstream = self.waited;
        self.stage = Stage::Ended;
        Item::Reply(reply)
    }

    /// In mode `observe`: says which call would have become a task.
    fn observe(&self) {
        let Stage::Inline(Inline { observed_after: Some(after), .. }) = &self.stage else { return };
        if self.waited >= *after {
            let tool = self.call.target.as_deref().unwrap_or_default();
            WouldDefer { tool, route: &self.shared.route.path, after: *after, took: self.waited }.emit();
        }
    }
}

impl Conversation for Attended {
    /// The next message for the client. Dropping the future in between loses nothing but the wait.
    async fn next(&mut self) -> Option<Item> {
        loop {
            match &mut self.stage {
                Stage::Fresh => {
                    if let Err(reply) = self.start().await {
                        return Some(self.last(*reply));
                    }
                }
                Stage::Inline(_) => {
                    if let Some(item) = self.step().await {
                        return Some(item);
                    }
                }
                Stage::Moved { items, since } => match items.recv().await {
                    Some(Item::Reply(reply)) => {
                        self.waited += self.shared.clock.now() - *since;
                        return Some(self.last(reply));
                    }
                    other => return other,
                },
                Stage::Ended => return None,
            }
        }
    }
}

/// Learns who the server is, and judges the call by that.
async fn prepare(shared: Arc<Shared>, call: Arc<Call>, caller: Arc<Caller>) -> Prepared {
    let server = shared.upstream.describe(&Identity::of(&caller)).await.map_err(|lost| {
        let unknown = Description::unknown();
        Box::new(reply::to_client(&call, &shared.route, &unknown, Word::Lost(lost), None))
    })?;
    if !shared.serves(&call.method, &server) {
        return Err(Box::new(reply::not_served(&call)));
    }
    if call.method == Method::ToolsCall {
        check_mirrored(&shared, &call, &caller).await?;
    }
    Ok(server)
}

/// The call as it is sent.
fn request(shared: &Shared, call: &Call, caller: &Caller, deferral: Option<Deferral>) -> Request {
    let id = shared.next_id();
    // What may become a task is watched: its progress is shown in the task's status message.
    let wants_progress = call.progress_token.is_some() || deferral.is_some();
    Request {
        caller: Identity::of(caller),
        id,
        method: call.method.clone(),
        body: raise::request(call, id, wants_progress),
        headers: call.headers.clone(),
        deferral,
    }
}

/// A call whose client waits no longer while its server is still being made ready. What judges it
/// then, ends it.
fn prepared_later(
    preparing: impl Future<Output = Prepared> + Send + 'static,
    shared: &Arc<Shared>,
    call: &Arc<Call>,
    caller: &Arc<Caller>,
    server: &Server,
    deferral: Option<Deferral>,
) -> Replies {
    let (shared, call, caller) = (Arc::clone(shared), Arc::clone(call), Arc::clone(caller));
    let server = server.clone();
    let replies = async move {
        match preparing.await {
            Ok(known) => {
                server.learn(known);
                shared.upstream.call(request(&shared, &call, &caller, deferral))
            }
            Err(refusal) => {
                let refused = Frame::parse(refusal.body)
                    .map_or_else(|error| Event::Lost(Lost::Invalid(error.to_string())), Event::Final);
                stream::once(ready(refused)).boxed()
            }
        }
    };
    stream::once(replies).flatten().boxed()
}

// === impl Server ===

impl Server {
    /// What the server said of itself; a stand-in until it has.
    pub(super) fn known(&self) -> Arc<Description> {
        self.0.get().map_or_else(|| Arc::new(Description::unknown()), Arc::clone)
    }

    pub(super) fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    fn learn(&self, description: Arc<Description>) {
        // Once: a call has one server.
        let _ = self.0.set(description);
    }
}

/// Compares the `Mcp-Param-*` headers with the arguments (2026-07-28, *Server Behavior for
/// Custom Headers*). A server whose tools cannot be listed is called all the same.
async fn check_mirrored(shared: &Shared, call: &Call, caller: &Caller) -> Result<(), Box<Reply>> {
    let tool = call.target.as_deref().unwrap_or_default();
    let Some(catalogue) = shared.catalogue(caller).await else { return Ok(()) };
    let wanted = catalogue.mirrored(tool);
    if wanted.is_empty() {
        return Ok(());
    }
    let arguments = catalogue::arguments(call.params.as_ref());
    headers::check_params(wanted, arguments.as_ref(), &call.headers).map_err(|mismatch| {
        let error = ErrorObject::new(code::HEADER_MISMATCH, mismatch.to_string());
        Box::new(reply::refuse(call, StatusCode::BAD_REQUEST, &error))
    })
}

pub(super) async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due.into()).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bridge::resume::Keyring,
        dialect::{Credentials, Principal, modern},
        policy,
        protocol::Id,
        proxy::{Service, Tasks, endpoint::Endpoint},
        runtime::{Clock, Drain, SystemClock},
        store::Memory,
        upstream::{Document, Report, Subscription, Upstream},
    };
    use bytes::Bytes;
    use futures_util::{FutureExt, future::BoxFuture};
    use serde_json::json;
    use std::future::pending;
    use tokio::{sync::broadcast, time::sleep};

    /// A server that takes its time for a handshake, and as much for a list of its tools.
    struct Slow {
        preparing: Duration,
        /// What it answers calls with, if anything.
        answer: Option<&'static str>,
    }

    impl Upstream for Slow {
        fn call(&self, request: Request) -> Replies {
            let (takes, id) = match request.method {
                Method::ToolsList => (self.preparing, request.id),
                _ => (Duration::ZERO, request.id),
            };
            let result = match request.method {
                Method::ToolsList => Some(r#"{"tools":[]}"#),
                _ => self.answer,
            };
            stream::once(async move {
                let Some(result) = result else { return pending().await };
                sleep(takes).await;
                let id = Id::from_token(id.to_string().into()).expect("a number");
                Event::Final(
                    Frame::parse(modern::success_response(&id, result.as_bytes())).expect("a response"),
                )
            })
            .boxed()
        }

        fn describe(&self, _: &Identity) -> BoxFuture<'_, Result<Arc<Description>, Lost>> {
            async {
                sleep(self.preparing).await;
                let capabilities = Bytes::from_static(br#"{"tools":{}}"#);
                Ok(Arc::new(Description { capabilities, ..Description::unknown() }))
            }
            .boxed()
        }

        fn watch(&self, _: Principal) -> broadcast::Receiver<Report> {
            broadcast::channel(1).1
        }

        fn changes(&self, _: Principal) -> broadcast::Receiver<Report> {
            broadcast::channel(1).1
        }

        fn subscribe<'a>(&'a self, _: &'a Identity, _: &'a str) -> BoxFuture<'a, Result<Subscription, Lost>> {
            pending().boxed()
        }

        fn fetch<'a>(&'a self, _: &'a str, _: &'a Credentials) -> BoxFuture<'a, Result<Document, Lost>> {
            pending().boxed()
        }

        fn close(&self) -> BoxFuture<'_, ()> {
            std::future::ready(()).boxed()
        }
    }

    /// What a client that takes tasks is answered with, and after how long.
    async fn called(server: Slow, defer: policy::Defer) -> (Value, Duration) {
        let clock = Arc::new(SystemClock::new());
        let tasks = Tasks::new(Arc::new(Memory::default()), policy::Quotas::default(), clock.clone());
        let signals = [Drain::new(), Drain::new(), Drain::new()];
        let heard = signals.each_ref().map(|(_, heard)| heard.clone());
        let route = policy::Route {
            path: "/mcp".into(),
            defer,
            tools: Vec::new(),
            principal: policy::PrincipalSource::Authorization,
            questions: policy::Questions::default(),
            legacy_tasks: policy::LegacyTasks::default(),
            resume: policy::Resume::default(),
            held: policy::Held::default(),
            forward: Vec::new(),
            empty_contents_is_error: false,
        };
        let keyring = Arc::new(Keyring::new([7; 32], &[]));
        let endpoint = Endpoint::new(Arc::new(route), Arc::new(server), tasks, clock.clone(), keyring, heard);
        let meta = "io.modelcontextprotocol/";
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "t",
            "_meta": {
                format!("{meta}protocolVersion"): "2026-07-28",
                format!("{meta}clientCapabilities"): { "extensions": { format!("{meta}tasks"): {} } },
            },
        } });
        let mut headers = http::HeaderMap::new();
        for (name, value) in
            [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "t")]
        {
            headers.insert(name, http::HeaderValue::from_static(value));
        }
        let read = modern::read(body.to_string().into(), &headers, 128).expect("it is right");
        let modern::Read::Request(call, capabilities) = read else { panic!("it is a request") };
        let caller = Caller {
            principal: Principal::from_bytes([1; 16]),
            credentials: Credentials::default(),
            capabilities: Arc::new(capabilities),
        };
        let began = clock.now();
        let mut items = endpoint.call(*call, caller);
        let Some(Item::Reply(reply)) = items.next().await else { panic!("it is answered") };
        (serde_json::from_slice(&reply.body).expect("JSON"), clock.now() - began)
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_the_handshake_and_the_tools_counts_against_the_threshold() {
        let (second, after) = (Duration::from_secs(1), Duration::from_secs(5));
        let defer = policy::Defer { after, ..policy::Defer::default() };
        for preparing in [0, 1, 2, 3, 60] {
            let server = Slow { preparing: preparing * second, answer: None };
            let (answer, took) = called(server, defer).await;
            assert_eq!(answer["result"]["resultType"], "task", "{answer:#}");
            assert_eq!(took, after, "{preparing}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn always_is_always() {
        let defer = policy::Defer { mode: policy::Mode::Always, ..policy::Defer::default() };
        for _ in 0..20 {
            let server = Slow { preparing: Duration::ZERO, answer: Some(r#"{"content":[]}"#) };
            let (answer, _) = called(server, defer).await;
            assert_eq!(answer["result"]["resultType"], "task", "{answer:#}");
        }
    }
}
