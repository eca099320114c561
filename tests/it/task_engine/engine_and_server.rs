//! A route and its tasks as the program joins them, in front of a server in memory, on a paused clock. Requests are
//! the futures that a connection would poll, so that a test says how often they are.

use super::memory_server::Server;
use crate::{lifetimes::process, support::faulty_store::FaultyStore};
use bytes::Bytes;
use deferral::internals::{
    bridge::resume::SealKeyring,
    dialect::{
        Caller, Credentials, Principal,
        legacy::LegacyPost,
        modern::{ModernMessage, read_message},
    },
    policy::{
        ClientMatch, HolderMatch, Mode, Route, TaskQuotas, TicketHolder, TicketPolicy, UnsolicitedTasks,
    },
    protocol::{Frame, meta},
    proxy::{
        CallRegistry, DeliveryCommit, Endpoint, LegacyRequest, LegacyResponse, OperatorTasks, ReplyItem,
        ResponseBody, RouteService as _, TaskLedger,
    },
    runtime::{Clock, Drain, SystemClock},
    store::{MemoryStore, Store, StoreBounds, StoreSecret},
    upstream::{Config, UpstreamLimits, in_memory},
};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
    time::sleep,
};

/// How a world is to be.
pub(super) struct Setup {
    pub(super) route: Route,
    pub(super) quotas: TaskQuotas,
    pub(super) store: Arc<FaultyStore>,
}

pub(super) struct EngineAndServer {
    pub(super) endpoint: Endpoint,
    pub(super) operators: Arc<OperatorTasks>,
    pub(super) ledger: Arc<TaskLedger>,
    pub(super) switchboard: Arc<CallRegistry>,
    pub(super) store: Arc<FaultyStore>,
    pub(super) server: Server,
    pub(super) path: Arc<str>,
    pub(super) quotas: TaskQuotas,
    /// To begin nothing new; to end; to listen no more.
    pub(super) drains: [Drain; 3],
}

/// A client of 2026-07-28.
#[derive(Clone, Debug, Default)]
pub(super) struct Modern {
    pub(super) takes_tasks: bool,
    pub(super) can_be_asked: bool,
    pub(super) holds_tickets: bool,
    /// Its connection breaks before its socket has taken a handle.
    pub(super) loses_handles: bool,
    /// Clients of different numbers share no session at the server.
    pub(super) number: usize,
}

/// A client of 2025-11-25, in its session.
#[derive(Clone, Debug)]
pub(super) struct Legacy {
    session: String,
    sign: Sign,
}

/// What a client of 2025-11-25 is known for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Nothing,
    /// It takes tasks that it has not asked for.
    TakesTasks,
    HoldsTickets,
}

/// What a client has received, in order.
pub(super) type Received = Arc<Mutex<Vec<Value>>>;

/// One request: the future that its connection polls, and what is received by that.
pub(super) struct Request {
    pub(super) received: Received,
    has_begun: Arc<AtomicBool>,
    serving: BoxFuture<'static, ()>,
}

/// A request that is under way.
pub(super) struct Sent {
    pub(super) received: Received,
    has_begun: Arc<AtomicBool>,
    serving: JoinHandle<()>,
}

/// How the future of a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    Done,
    /// It was dropped after so many polls as it was to have.
    Dropped,
    /// It was dropped when nothing was left to happen but what it waited for.
    AtRest,
}

/// From then on a call is a task.
pub(super) const AFTER: Duration = Duration::from_secs(1);
/// From then on it has a ticket.
pub(super) const TICKET_AFTER: Duration = Duration::from_millis(50);
/// So long the result is waited for with a ticket.
pub(super) const WAIT: Duration = Duration::from_secs(10);
pub(super) const RETENTION: Duration = Duration::from_secs(120);

const TASKS: &str = "io.modelcontextprotocol/tasks";
/// Everything under way has come to rest in it, if the store does not stall.
const MOMENT: Duration = Duration::from_millis(20);

/// A runtime whose time passes as soon as everything waits.
pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

/// Lets everything happen that is under way.
pub(super) async fn settle() {
    sleep(MOMENT).await;
}

/// Waits until something is so, as long as a disk may take.
pub(super) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        sleep(MOMENT / 2).await;
    }
    panic!("waited in vain: {what}");
}

// === impl Setup ===

impl Setup {
    /// Calls are tasks after [`AFTER`], and there is a ticket for whoever shows that it takes some.
    pub(super) fn new() -> Self {
        let mut route = process::route(false);
        route.defer.after = AFTER;
        route.defer.retention = RETENTION;
        let header = |name: &'static str| ClientMatch::Header(HeaderName::from_static(name), "1".to_owned());
        let holder = TicketHolder {
            client_match: HolderMatch::Client(header("x-agent")),
            after: Some(TICKET_AFTER),
            result_wait: Some(WAIT),
        };
        route.tickets = TicketPolicy { holders: Some(vec![holder]), ..TicketPolicy::default() };
        route.legacy_tasks.unsolicited = UnsolicitedTasks::Matching(vec![header("x-takes-tasks")]);
        let quotas =
            TaskQuotas { polls_per_second: u32::MAX, misses_per_minute: u32::MAX, ..TaskQuotas::default() };
        Self { route, quotas, store: FaultyStore::new() }
    }

    /// Each call is a task at once.
    pub(super) fn always(mut self) -> Self {
        self.route.defer.mode = Mode::Always;
        self
    }

    /// What is kept is there for the next process, as on a disk.
    pub(super) fn outlives(self) -> Self {
        self.keeps(Arc::new(MemoryStore::default().restarted()))
    }

    pub(super) fn keeps(mut self, store: Arc<dyn Store>) -> Self {
        self.store = FaultyStore::around(store);
        self
    }

    pub(super) fn quotas(mut self, change: impl FnOnce(&mut TaskQuotas)) -> Self {
        change(&mut self.quotas);
        self
    }

    /// The store keeps no more bytes than the quotas say.
    pub(super) fn bounded(self) -> Self {
        let TaskQuotas { stored_bytes, stored_bytes_per_principal, .. } = self.quotas;
        let bounds = StoreBounds { stored_bytes, stored_bytes_per_principal };
        self.keeps(Arc::new(MemoryStore::bounded(bounds)))
    }

    /// Must be called within a runtime.
    pub(super) fn start(self) -> EngineAndServer {
        let Self { route, quotas, store } = self;
        let limits = UpstreamLimits {
            sessions: 5_000,
            task_sessions: 5_000,
            queue: 5_000,
            ..UpstreamLimits::default()
        };
        let (upstream, started) =
            in_memory(Config { limits, ..Config::default() }).expect("a runtime is entered");
        let server = Server::default();
        tokio::spawn(server.clone().serve(started));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let secret = store.is_durable().then(|| StoreSecret::new(&[9; 32]));
        let ledger = TaskLedger::new(store.clone(), secret.as_ref(), quotas, Arc::clone(&clock));
        let switchboard = Arc::clone(&ledger.call_registry);
        let [(draining, stopping), (overdue, too_late), (closing, closed)] =
            [Drain::new(), Drain::new(), Drain::new()];
        let path = Arc::clone(&route.path);
        let endpoint = Endpoint::new(
            Arc::new(route),
            upstream,
            Arc::clone(&ledger),
            clock,
            Arc::new(SealKeyring::new([7; 32], &[])),
            [stopping, too_late.clone(), closed],
        );
        tokio::spawn(Arc::clone(&ledger).maintain(vec![endpoint.clone()], too_late));
        let operators = Arc::new(OperatorTasks::new(Arc::clone(&ledger)));
        let drains = [draining, overdue, closing];
        EngineAndServer { endpoint, operators, ledger, switchboard, store, server, path, quotas, drains }
    }
}

// === impl EngineAndServer ===

impl EngineAndServer {
    /// A request of a client of 2026-07-28.
    pub(super) fn ask(&self, client: &Modern, method: &str, mut params: Value) -> Request {
        let mut declared = json!({});
        if client.takes_tasks {
            declared["extensions"] = json!({ TASKS: {} });
        }
        if client.can_be_asked {
            declared["elicitation"] = json!({});
        }
        if client.number > 0 {
            declared["experimental"] = json!({ "number": { "is": client.number } });
        }
        let mut headers = HeaderMap::new();
        let mut put = |name: &'static str, value: &str| {
            headers.insert(name, HeaderValue::from_str(value).expect("a header"));
        };
        put("mcp-protocol-version", "2026-07-28");
        put("mcp-method", method);
        if let Some(name) = params.get("taskId").or_else(|| params.get("name")) {
            put("mcp-name", name.as_str().expect("a name"));
        }
        put("authorization", "Bearer one");
        if client.holds_tickets {
            put("x-agent", "1");
        }
        params["_meta"] =
            json!({ meta::PROTOCOL_VERSION: "2026-07-28", meta::CLIENT_CAPABILITIES: declared });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let frame = Frame::parse(Bytes::from(body.to_string()));
        let Ok(ModernMessage::Request(call, capabilities)) = read_message(frame, &headers, None) else {
            panic!("{body} is no request")
        };
        let caller = Caller {
            principal: principal(),
            credentials: Credentials::from_request(&headers, &[]),
            capabilities,
            client_info: Default::default(),
            match_headers: Some(Arc::new(headers)),
            rollout_membership: Default::default(),
        };
        let (endpoint, loses_handles) = (self.endpoint.clone(), client.loses_handles);
        Request::new(|received| {
            async move {
                let mut items = endpoint.call(call, caller);
                while let Some(item) = items.next().await {
                    match item {
                        ReplyItem::Notification(message) => receive(&received, &message),
                        ReplyItem::TaskEnd(message, commit) => {
                            receive(&received, &message);
                            commit.confirm();
                        }
                        ReplyItem::Reply(mut reply) => {
                            receive(&received, &reply.body);
                            if let Some(commit) = reply.commit.take().filter(|_| !loses_handles) {
                                commit.confirm();
                            }
                        }
                    }
                }
            }
            .boxed()
        })
    }

    /// A client of 2025-11-25 that has opened a session.
    pub(super) async fn legacy(&self, sign: Sign, capabilities: Value) -> Legacy {
        let nobody = Legacy { session: String::new(), sign };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": { "name": "c", "version": "1" },
        });
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let passed = self.endpoint.relay(passage(&nobody, Method::POST, Some(&hello))).await;
        let session =
            passed.headers.get("mcp-session-id").expect("a session").to_str().expect("text").to_owned();
        let client = Legacy { session, ..nobody };
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        self.tell(&client, &ready).served().await;
        client
    }

    /// A message of a client of 2025-11-25: a request, a notification or an answer.
    pub(super) fn tell(&self, client: &Legacy, message: &Value) -> Request {
        self.pass(passage(client, Method::POST, Some(message)))
    }

    pub(super) fn legacy_ask(&self, client: &Legacy, method: &str, params: Value) -> Request {
        self.tell(client, &json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }))
    }

    /// The stream of the session itself.
    pub(super) fn listen(&self, client: &Legacy) -> Request {
        self.pass(passage(client, Method::GET, None))
    }

    fn pass(&self, passage: LegacyRequest) -> Request {
        let endpoint = self.endpoint.clone();
        Request::answered(|received, has_begun| {
            async move {
                let LegacyResponse { body, status, .. } = endpoint.relay(passage).await;
                has_begun.store(true, Ordering::Relaxed);
                match body {
                    ResponseBody::Complete(bytes, _) if bytes.is_empty() => {
                        receive(&received, status.as_str().as_bytes());
                    }
                    ResponseBody::Complete(bytes, _) => receive(&received, &bytes),
                    ResponseBody::TaskEnd(bytes, of_task) => {
                        receive(&received, &bytes);
                        of_task.1.confirm();
                    }
                    ResponseBody::Stream(mut pieces) => {
                        let mut read = String::new();
                        while let Some(piece) = pieces.next().await {
                            read.push_str(std::str::from_utf8(&piece.bytes).expect("text"));
                            while let Some((line, rest)) = read.split_once('\n') {
                                if let Some(data) = line.strip_prefix("data:") {
                                    receive(&received, data.trim().as_bytes());
                                }
                                read = rest.to_owned();
                            }
                            piece.commit.into_iter().for_each(DeliveryCommit::confirm);
                        }
                    }
                }
            }
            .boxed()
        })
    }

    /// A call that has become a task of 2026-07-28.
    pub(super) async fn task(&self, client: &Modern) -> String {
        let said = self.ask(client, "tools/call", json!({ "name": "t" })).served().await;
        said["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {said}")).to_owned()
    }

    /// A call that has become a task of 2025-11-25.
    pub(super) async fn legacy_task(&self, client: &Legacy) -> String {
        let params = json!({ "name": "t", "task": { "ttl": 60_000 } });
        let said = self.legacy_ask(client, "tools/call", params).served().await;
        let id = &said["result"]["task"]["taskId"];
        id.as_str().unwrap_or_else(|| panic!("no task: {said}")).to_owned()
    }

    /// The value of a ticket that a call has been answered with.
    pub(super) fn ticket_in(said: &Value) -> String {
        let ticket = &said["result"]["_meta"]["deferral/ticket"]["ticket"];
        ticket.as_str().unwrap_or_else(|| panic!("no ticket: {said}")).to_owned()
    }
}

fn principal() -> Principal {
    Principal::from_bytes([1; 16])
}

fn passage(client: &Legacy, method: Method, message: Option<&Value>) -> LegacyRequest {
    let mut headers = HeaderMap::new();
    let mut put = |name: &'static str, value: &str| {
        headers.insert(name, HeaderValue::from_str(value).expect("a header"));
    };
    put("accept", "application/json, text/event-stream");
    put("content-type", "application/json");
    put("authorization", "Bearer one");
    match client.sign {
        Sign::Nothing => {}
        Sign::TakesTasks => put("x-takes-tasks", "1"),
        Sign::HoldsTickets => put("x-agent", "1"),
    }
    if !client.session.is_empty() {
        put("mcp-session-id", &client.session);
        put("mcp-protocol-version", "2025-11-25");
    }
    let body = message.map(|message| Bytes::from(message.to_string())).unwrap_or_default();
    let message = message.map(|_| Frame::parse(body.clone()).expect("a message"));
    let post = message.as_ref().map(LegacyPost::from_frame).unwrap_or_default();
    LegacyRequest {
        principal: principal(),
        rollout_membership: Default::default(),
        method,
        query: None,
        headers,
        body,
        message,
        post,
        keep_alive: Duration::from_secs(3_600),
        trace: None,
    }
}

/// An event without data only says where a stream can be taken up.
fn receive(received: &Received, message: &[u8]) {
    if message.is_empty() {
        return;
    }
    let message = serde_json::from_slice(message).expect("JSON");
    received.lock().unwrap_or_else(PoisonError::into_inner).push(message);
}

/// What has been received so far.
pub(super) fn messages(received: &Received) -> Vec<Value> {
    received.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

// === impl Request ===

impl Request {
    fn new(serving: impl FnOnce(Received) -> BoxFuture<'static, ()>) -> Self {
        Self::answered(|received, _| serving(received))
    }

    fn answered(serving: impl FnOnce(Received, Arc<AtomicBool>) -> BoxFuture<'static, ()>) -> Self {
        let (received, has_begun) = (Received::default(), Arc::<AtomicBool>::default());
        Self { serving: serving(Arc::clone(&received), Arc::clone(&has_begun)), received, has_begun }
    }

    /// Anything else that a connection polls.
    pub(super) fn of<F: Future<Output = ()> + Send + 'static>(serving: F) -> Self {
        Self::new(|_| serving.boxed())
    }

    /// The last message that is received, once it is done.
    pub(super) async fn served(self) -> Value {
        self.serving.await;
        messages(&self.received).pop().expect("an answer")
    }

    /// Sends it; its client stays.
    pub(super) fn sent(self) -> Sent {
        let Self { received, has_begun, serving } = self;
        Sent { received, has_begun, serving: tokio::spawn(serving) }
    }

    /// Polls it so many times at most and drops it.
    pub(super) async fn polled(self, times: usize) -> Polled {
        let mut serving = self.serving;
        let mut polls = 0;
        let polled = poll_fn(move |cx| {
            if polls < times {
                polls += 1;
                if serving.poll_unpin(cx).is_ready() {
                    return Poll::Ready(Polled::Done);
                }
            }
            if polls == times { Poll::Ready(Polled::Dropped) } else { Poll::Pending }
        });
        tokio::select! {
            biased;
            polled = polled => polled,
            () = settle() => Polled::AtRest,
        }
    }
}

// === impl Sent ===

impl Sent {
    /// Its client waits no longer.
    pub(super) fn leaves(self) {
        self.serving.abort();
    }

    pub(super) fn is_done(&self) -> bool {
        self.serving.is_finished()
    }

    /// Whether a client of 2025-11-25 has the head of its answer.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// The last message that has been received, if there is one.
    pub(super) fn last(&self) -> Option<Value> {
        messages(&self.received).pop()
    }
}
