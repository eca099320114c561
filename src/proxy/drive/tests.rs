//! Tests of calls whose server returns `input_required` results or sends input requests.

use crate::{
    bridge::request_state::SealKeyring,
    dialect::{CallResponse, Caller, Credentials, Principal, modern},
    policy,
    protocol::{Frame, InputRequest, Method, Payload, RequestId, meta},
    proxy::{ReplyItem, ReplyStream, RouteService, TaskLedger, endpoint::Endpoint},
    runtime::{Drain, DrainWatch, SystemClock},
    store::MemoryStore,
    telemetry::{LineFormat, LogLayer},
    upstream::{
        ApplyReload, CallError, CallerIdentity, ChangeNotifier, Config, InputRequired, OutgoingCall,
        PendingServerRequest, ReadyServer, Responder, ServerRequest, Subscription, Upstream,
        UpstreamDescription, UpstreamEvent, UpstreamEvents, UpstreamSetupError, UpstreamStatus,
    },
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::HeaderValue;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    future::{pending, ready},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};
use tracing_subscriber::layer::SubscriberExt;

/// The signals that stop an endpoint: `stopping`, `overdue`, `closing`.
type Signals = [(Drain, DrainWatch); 3];

/// The capabilities of a client with task support.
pub(super) const TASKS: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// Creates the endpoint of a route with this server.
pub(super) fn endpoint(server: impl Upstream, defer: policy::DeferPolicy) -> (Endpoint, Arc<SystemClock>) {
    let (endpoint, clock, _) = endpoint_with_ledger(server, defer, policy::TaskQuotas::default());
    (endpoint, clock)
}

/// Creates the endpoint of a route with this server; also returns its shutdown signals.
fn endpoint_with_signals(server: impl Upstream, defer: policy::DeferPolicy) -> (Endpoint, Signals) {
    let clock = Arc::new(SystemClock::new());
    let ledger =
        TaskLedger::new(Arc::new(MemoryStore::default()), None, policy::TaskQuotas::default(), clock.clone());
    let signals = [Drain::new(), Drain::new(), Drain::new()];
    (create_endpoint(server, defer, &ledger, clock, &signals), signals)
}

/// Creates the endpoint of a route with this server; also returns its clock and its ledger.
fn endpoint_with_ledger(
    server: impl Upstream,
    defer: policy::DeferPolicy,
    quotas: policy::TaskQuotas,
) -> (Endpoint, Arc<SystemClock>, Arc<TaskLedger>) {
    let clock = Arc::new(SystemClock::new());
    let ledger = TaskLedger::new(Arc::new(MemoryStore::default()), None, quotas, clock.clone());
    let signals = [Drain::new(), Drain::new(), Drain::new()];
    let endpoint = create_endpoint(server, defer, &ledger, clock.clone(), &signals);
    // The signals are leaked, so that the endpoint never stops.
    std::mem::forget(signals);
    (endpoint, clock, ledger)
}

fn create_endpoint(
    server: impl Upstream,
    defer: policy::DeferPolicy,
    ledger: &Arc<TaskLedger>,
    clock: Arc<SystemClock>,
    signals: &Signals,
) -> Endpoint {
    let watches = signals.each_ref().map(|(_, watch)| watch.clone());
    let route = policy::Route {
        path: "/mcp".into(),
        defer,
        tools: Vec::new(),
        principal: policy::PrincipalSource::Authorization,
        input_policy: policy::InputPolicy::default(),
        legacy_tasks: policy::LegacyTaskPolicy::default(),
        resume: policy::ResumePolicy::default(),
        tickets: policy::TicketPolicy::default(),
        wait_policy: policy::WaitPolicy::default(),
        session_headers: Vec::new(),
        limits: Default::default(),
        queue: Default::default(),
        timeout: None,
        response_headers: Vec::new(),
        adds_forwarded_header: false,
        empty_contents_is_error: false,
    };
    let keyring = Arc::new(SealKeyring::new([7; 32], &[]));
    let (server, ledger) = (Arc::new(server), Arc::clone(ledger));
    Endpoint::new(Arc::new(route), server, ledger, clock, keyring, watches)
}

/// Sends a request of a client with the capabilities `declares` (JSON), and returns the response.
pub(super) async fn call(endpoint: &Endpoint, method: &str, declares: &str, params: Value) -> Value {
    answer(begin(endpoint, method, declares, params)).await
}

/// The messages for a request of a client with the capabilities `declares` (JSON); the request is sent when
/// the stream is polled.
fn begin(endpoint: &Endpoint, method: &str, declares: &str, mut params: Value) -> ReplyStream {
    let declares: Value = serde_json::from_str(declares).expect("JSON");
    let name = params.get("name").or_else(|| params.get("taskId")).and_then(Value::as_str).map(str::to_owned);
    params["_meta"] = json!({
        meta::PROTOCOL_VERSION: "2026-07-28", meta::CLIENT_CAPABILITIES: declares, meta::LOG_LEVEL: "error",
    });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let mut headers = http::HeaderMap::new();
    headers.insert("mcp-protocol-version", HeaderValue::from_static("2026-07-28"));
    headers.insert("mcp-method", HeaderValue::from_str(method).expect("a header"));
    if let Some(name) = name {
        headers.insert("mcp-name", HeaderValue::from_str(&name).expect("a header"));
    }
    let read =
        modern::read_message(Frame::parse(body.to_string().into()), &headers, None).expect("it is right");
    let modern::ModernMessage::Request(call, capabilities) = read else { panic!("it is a request") };
    let caller = Caller {
        principal: Principal::from_bytes([1; 16]),
        credentials: Credentials::default(),
        capabilities,
        client_info: Default::default(),
        match_headers: None,
        rollout_membership: Default::default(),
    };
    endpoint.call(call, caller)
}

async fn answer(mut items: ReplyStream) -> Value {
    while let Some(item) = items.next().await {
        if let ReplyItem::Reply(mut reply) = item {
            if let Some(commit) = reply.commit.take() {
                commit.confirm();
            }
            return serde_json::from_slice(&reply.body).expect("JSON");
        }
    }
    panic!("it is answered")
}

/// A server that returns `input_required` with two input requests in each of its rounds, and then a result
/// that lists the responses of the last round.
struct MultiRoundServer {
    /// The number of `input_required` results.
    rounds: usize,
    /// How long the first response takes, and each further one.
    takes: [Duration; 2],
    /// The number of calls.
    call_count: Arc<AtomicUsize>,
}

impl MultiRoundServer {
    fn into_upstream(self) -> TestServer<impl Fn(OutgoingCall) -> UpstreamEvents + Send + Sync + 'static> {
        let answers = move |outgoing: OutgoingCall| match outgoing.call.method {
            Method::ToolsList => stream::iter([response(r#"{"tools":[]}"#)]).boxed(),
            _ => {
                Self::respond_round((self.rounds, self.takes, Arc::clone(&self.call_count)), BTreeMap::new())
            }
        };
        TestServer { preparing: Duration::ZERO, answers }
    }

    fn respond_round(
        (rounds, [takes, later], called): (usize, [Duration; 2], Arc<AtomicUsize>),
        answers: BTreeMap<String, Bytes>,
    ) -> UpstreamEvents {
        called.fetch_add(1, Ordering::Relaxed);
        let event = async move {
            sleep(takes).await;
            if rounds > 0 {
                let again = (rounds - 1, [later, later], called);
                return UpstreamEvent::InputRequired(InputRequired {
                    requests: ["name", "age"].map(|key| (key.to_owned(), elicitation(key))).into(),
                    retry: Box::new(move |answers| Self::respond_round(again, answers)),
                });
            }
            let outcomes = answers.iter().map(|(key, answer)| {
                let answer: Value = serde_json::from_slice(answer).expect("JSON");
                format!("{key}={}", answer["action"].as_str().unwrap_or("?"))
            });
            let text = outcomes.collect::<Vec<_>>().join(" ");
            response(&json!({ "content": [{ "type": "text", "text": text }] }).to_string())
        };
        stream::once(event).boxed()
    }
}

/// An elicitation request with this message.
fn elicitation(what: &str) -> InputRequest {
    let params = json!({ "message": what, "requestedSchema": { "type": "object", "properties": {} } });
    let raw = json!({ "method": "elicitation/create", "params": params }).to_string();
    InputRequest::from_raw(raw.into()).expect("a question")
}

/// A test server.
pub(super) struct TestServer<F> {
    /// How long the handshake takes.
    pub(super) preparing: Duration,
    /// Returns the server's messages for a call.
    pub(super) answers: F,
}

impl<F: Fn(OutgoingCall) -> UpstreamEvents + Send + Sync + 'static> Upstream for TestServer<F> {
    fn call(&self, call: OutgoingCall) -> UpstreamEvents {
        (self.answers)(call)
    }

    fn describe(&self, _: &CallerIdentity) -> BoxFuture<'_, Result<Arc<UpstreamDescription>, CallError>> {
        async {
            sleep(self.preparing).await;
            let capabilities = Payload::read(Bytes::from_static(br#"{"tools":{}}"#));
            Ok(Arc::new(UpstreamDescription { capabilities, ..UpstreamDescription::unknown() }))
        }
        .boxed()
    }

    fn ready_server(&self, _: &CallerIdentity) -> Option<ReadyServer> {
        None
    }

    fn status(&self) -> UpstreamStatus {
        UpstreamStatus { takes_turns: true, ..UpstreamStatus::default() }
    }

    fn watch(&self, _: Principal) -> ChangeNotifier {
        // Never dropped: its tools never change.
        static CHANGES: LazyLock<ChangeNotifier> = LazyLock::new(ChangeNotifier::default);
        CHANGES.clone()
    }

    fn subscribe<'a>(
        &'a self,
        _: &'a CallerIdentity,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Subscription, CallError>> {
        pending().boxed()
    }

    fn prepare_reload(&self, _: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        Ok(Box::new(|| {}))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}

/// The event of a server's response with this result (JSON).
pub(super) fn response(result: &str) -> UpstreamEvent {
    let text = modern::success_response(&RequestId::from_number(0), result.as_bytes());
    UpstreamEvent::Final(CallResponse::relayed(Frame::parse(text).expect("a response")))
}

/// A responder that passes the response to an input request to a test server.
struct AnswerSender(oneshot::Sender<Result<Bytes, Bytes>>);

impl Responder for AnswerSender {
    fn respond(self: Box<Self>, outcome: Result<Bytes, Bytes>) {
        let _ = self.0.send(outcome);
    }

    fn discard(self: Box<Self>) {}
}

/// The events of a server that sends an input request, and returns the action of the response as its result.
fn requesting_server(outgoing: &OutgoingCall) -> UpstreamEvents {
    if outgoing.call.method == Method::ToolsList {
        return stream::iter([response(r#"{"tools":[]}"#)]).boxed();
    }
    let (sender, received) = oneshot::channel();
    let request = ServerRequest::Canonical(elicitation("name"));
    let asks = PendingServerRequest {
        request,
        id: RequestId::from_number(7),
        responder: Box::new(AnswerSender(sender)),
    };
    let says = async {
        let outcome = received.await.expect("an answer").expect("no error");
        let outcome: Value = serde_json::from_slice(&outcome).expect("JSON");
        response(&json!({ "content": [{ "type": "text", "text": outcome["action"] }] }).to_string())
    };
    stream::iter([UpstreamEvent::ServerRequest(asks)]).chain(stream::once(says)).boxed()
}

const ELICITATION: &str = r#"{"elicitation":{"form":{}}}"#;
const ELICITATION_AND_TASKS: &str =
    r#"{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
const DEFER_AFTER_5S: policy::DeferPolicy = policy::DeferPolicy {
    mode: policy::Mode::Auto,
    after: Duration::from_secs(5),
    retention: Duration::from_secs(60),
    rollout: None,
};

fn multi_round_endpoint(rounds: usize, takes: Duration) -> (Endpoint, Arc<AtomicUsize>) {
    let called = Arc::new(AtomicUsize::new(0));
    let server = MultiRoundServer { rounds, takes: [takes, takes], call_count: Arc::clone(&called) };
    (endpoint(server.into_upstream(), DEFER_AFTER_5S).0, called)
}

/// The accepting input responses for these keys.
fn accepting_responses<'a>(keys: impl IntoIterator<Item = &'a String>) -> Value {
    keys.into_iter().map(|key| (key.clone(), json!({ "action": "accept", "content": {} }))).collect()
}

fn request_keys(result: &Value) -> Vec<String> {
    result["inputRequests"].as_object().expect("questions").keys().cloned().collect()
}

fn result_text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("a result: {result}"))
}

#[tokio::test(start_paused = true)]
async fn an_input_required_call_is_repeated_once_all_responses_are_there() {
    let (endpoint, called) = multi_round_endpoint(2, Duration::ZERO);
    let mut params = json!({ "name": "t" });
    for round in 1..=2 {
        let answer = call(&endpoint, "tools/call", ELICITATION, params.clone()).await;
        let result = &answer["result"];
        assert_eq!(result["resultType"], "input_required", "{answer}");
        let keys = request_keys(result);
        assert_eq!(keys.len(), 2);
        // One response of two: the other request is sent again, and the server is not called yet.
        params = json!({ "name": "t", "requestState": result["requestState"], "inputResponses": accepting_responses(&keys[..1]) });
        let again = call(&endpoint, "tools/call", ELICITATION, params.clone()).await;
        assert_eq!(request_keys(&again["result"]), keys[1..], "{again}");
        assert_eq!(called.load(Ordering::Relaxed), round);
        let (state, rest) = (&again["result"]["requestState"], accepting_responses(&keys[1..]));
        params = json!({ "name": "t", "requestState": state, "inputResponses": rest });
    }
    let answer = call(&endpoint, "tools/call", ELICITATION, params).await;
    assert_eq!(result_text(&answer["result"]), "age=accept name=accept");
    assert_eq!(called.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn an_input_required_result_becomes_input_requests_of_the_task() {
    let (endpoint, called) = multi_round_endpoint(1, Duration::from_secs(10));
    let task = call(&endpoint, "tools/call", ELICITATION_AND_TASKS, json!({ "name": "t" })).await;
    let id = task["result"]["taskId"].as_str().expect("a handle").to_owned();
    let get = || call(&endpoint, "tasks/get", ELICITATION_AND_TASKS, json!({ "taskId": id }));
    assert_eq!(get().await["result"]["status"], "working");
    sleep(Duration::from_secs(10)).await;
    let shown = get().await;
    assert_eq!(shown["result"]["status"], "input_required", "{shown}");
    for key in request_keys(&shown["result"]) {
        assert_eq!(called.load(Ordering::Relaxed), 1, "not before all is answered");
        let params = json!({ "taskId": id, "inputResponses": accepting_responses([&key]) });
        let taken = call(&endpoint, "tasks/update", ELICITATION_AND_TASKS, params).await;
        assert!(taken.get("error").is_none(), "{taken}");
    }
    sleep(Duration::from_secs(11)).await;
    let shown = get().await;
    assert_eq!(shown["result"]["status"], "completed", "{shown}");
    assert_eq!(result_text(&shown["result"]["result"]), "age=accept name=accept");
    assert_eq!(called.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_input_responses_can_be_cancelled() {
    let (endpoint, called) = multi_round_endpoint(1, Duration::from_secs(10));
    let task = call(&endpoint, "tools/call", ELICITATION_AND_TASKS, json!({ "name": "t" })).await;
    let id = &task["result"]["taskId"];
    sleep(Duration::from_secs(10)).await;
    call(&endpoint, "tasks/cancel", ELICITATION_AND_TASKS, json!({ "taskId": id })).await;
    let shown = call(&endpoint, "tasks/get", ELICITATION_AND_TASKS, json!({ "taskId": id })).await;
    assert_eq!(shown["result"]["status"], "cancelled", "{shown}");
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_without_the_capability_gets_missing_capability() {
    let (endpoint, called) = multi_round_endpoint(1, Duration::ZERO);
    let answer = call(&endpoint, "tools/call", "{}", json!({ "name": "t" })).await;
    assert_eq!(answer["error"]["code"], crate::protocol::code::MISSING_CAPABILITY, "{answer}");
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_with_too_many_input_required_results_fails() {
    let (endpoint, called) = multi_round_endpoint(usize::MAX, Duration::ZERO);
    let task = call(&endpoint, "tools/call", ELICITATION, json!({ "name": "t" })).await;
    let mut result = task["result"].clone();
    let error = loop {
        let (state, given) = (&result["requestState"], accepting_responses(&request_keys(&result)));
        let params = json!({ "name": "t", "requestState": state, "inputResponses": given });
        let mut answer = call(&endpoint, "tools/call", ELICITATION, params).await;
        match answer["result"].take() {
            Value::Null => break answer["error"].take(),
            next => result = next,
        }
    };
    assert!(
        error["message"].as_str().is_some_and(|message| message.contains("more than 64 times")),
        "{error}"
    );
    assert_eq!(called.load(Ordering::Relaxed), 65);
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_waiter_lacks_the_extension_is_handed_to_a_later_retry() {
    let call_count = Arc::new(AtomicUsize::new(0));
    let takes = [Duration::ZERO, Duration::from_secs(60)];
    let server = MultiRoundServer { rounds: 1, takes, call_count }.into_upstream();
    let (endpoint, _, ledger) = endpoint_with_ledger(server, DEFER_AFTER_5S, policy::TaskQuotas::default());
    let result =
        call(&endpoint, "tools/call", ELICITATION_AND_TASKS, json!({ "name": "t" })).await["result"].take();
    let again = json!({
        "name": "t", "requestState": result["requestState"], "inputResponses": accepting_responses(&request_keys(&result)),
    });
    // The same client twice: the one with task support disconnects before there is a task.
    let mut able = begin(&endpoint, "tools/call", ELICITATION_AND_TASKS, again.clone());
    assert!(able.next().now_or_never().is_none());
    sleep(Duration::from_secs(1)).await;
    let unable = answer(begin(&endpoint, "tools/call", ELICITATION, again.clone()));
    let leaves = async {
        sleep(Duration::from_secs(1)).await;
        drop(able);
    };
    let (refused, ()) = tokio::join!(unable, leaves);
    assert_eq!(refused["error"]["code"], crate::protocol::code::MISSING_CAPABILITY, "{refused}");
    let handle = call(&endpoint, "tools/call", ELICITATION_AND_TASKS, again).await;
    let id = &handle["result"]["taskId"];
    assert!(id.is_string(), "{handle}");
    sleep(Duration::from_secs(60)).await;
    let shown = call(&endpoint, "tasks/get", ELICITATION_AND_TASKS, json!({ "taskId": id })).await;
    assert_eq!(shown["result"]["status"], "completed", "{shown}");
    assert_eq!(ledger.working_count(), 0, "no driver runs an ended call");
}

#[tokio::test(start_paused = true)]
async fn an_input_required_call_without_quota_fails_and_is_not_repeated() {
    let called = Arc::new(AtomicUsize::new(0));
    let server = MultiRoundServer { rounds: 1, takes: [Duration::ZERO; 2], call_count: Arc::clone(&called) }
        .into_upstream();
    let quotas = policy::TaskQuotas { tasks_per_principal: 0, ..policy::TaskQuotas::default() };
    let (endpoint, ..) = endpoint_with_ledger(server, DEFER_AFTER_5S, quotas);
    let answer = call(&endpoint, "tools/call", ELICITATION, json!({ "name": "t" })).await;
    assert_eq!(answer["error"]["code"], crate::protocol::code::BUSY, "{answer}");
    let words = answer["error"]["message"].as_str().expect("words");
    assert!(words.contains("limits.tasks_per_principal"), "{words}");
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn delivery_to_one_of_two_clients_keeps_the_task() {
    for first_has_it in [true, false] {
        let call_count = Arc::new(AtomicUsize::new(0));
        let takes = [Duration::ZERO, Duration::from_secs(60)];
        let (endpoint, _) =
            endpoint(MultiRoundServer { rounds: 1, takes, call_count }.into_upstream(), DEFER_AFTER_5S);
        let result =
            call(&endpoint, "tools/call", ELICITATION_AND_TASKS, json!({ "name": "t" })).await["result"]
                .take();
        let again = json!({
            "name": "t", "requestState": result["requestState"], "inputResponses": accepting_responses(&request_keys(&result)),
        });
        let [mut first, mut second] =
            [(); 2].map(|()| begin(&endpoint, "tools/call", ELICITATION_AND_TASKS, again.clone()));
        let (Some(ReplyItem::Reply(first)), Some(ReplyItem::Reply(second))) =
            tokio::join!(first.next(), second.next())
        else {
            panic!("both are answered")
        };
        let id = first.summary.task.clone().expect("a handle");
        assert_eq!(second.summary.task.as_ref(), Some(&id));
        let (has, lost) = if first_has_it { (first, second) } else { (second, first) };
        drop(lost);
        sleep(Duration::from_secs(1)).await;
        has.commit.expect("it is waited for").confirm();
        sleep(Duration::from_secs(60)).await;
        let shown =
            call(&endpoint, "tasks/get", ELICITATION_AND_TASKS, json!({ "taskId": id.as_str() })).await;
        assert_eq!(shown["result"]["status"], "completed", "{shown}");
    }
}

/// The events of a server that sends an input request, and after the response sends `lines` log messages and
/// its result.
fn logging_server(outgoing: &OutgoingCall, lines: usize) -> UpstreamEvents {
    if outgoing.call.method == Method::ToolsList {
        return requesting_server(outgoing);
    }
    let line = || {
        let params = json!({ "level": "error", "data": "line" });
        let line = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params });
        UpstreamEvent::Notification(Frame::parse(line.to_string().into()).expect("a message"))
    };
    let (told, answer) = oneshot::channel();
    let asks = PendingServerRequest {
        request: ServerRequest::Canonical(elicitation("name")),
        id: RequestId::from_number(7),
        responder: Box::new(AnswerSender(told)),
    };
    let ends = async move {
        let _ = answer.await;
        // Retries that are sent at the same time have arrived by then.
        sleep(Duration::from_secs(1)).await;
        let end = response(&json!({ "content": [{ "type": "text", "text": "done" }] }).to_string());
        stream::iter((0..lines).map(move |_| line()).chain([end]))
    };
    stream::iter([UpstreamEvent::ServerRequest(asks)]).chain(stream::once(ends).flatten()).boxed()
}

/// Sends two retries with the same `requestState`: one of a client that does not read its messages, and
/// another before the server has responded, or after (`late`). Returns the response to the other.
async fn retry_beside_silent_client(lines: usize, late: bool) -> Value {
    let server =
        TestServer { preparing: Duration::ZERO, answers: move |outgoing| logging_server(&outgoing, lines) };
    let (endpoint, _) = endpoint(server, DEFER_AFTER_5S);
    let result = call(&endpoint, "tools/call", ELICITATION, json!({ "name": "t" })).await["result"].take();
    let again = json!({
        "name": "t", "requestState": result["requestState"], "inputResponses": accepting_responses(&request_keys(&result)),
    });
    let mut silent = begin(&endpoint, "tools/call", ELICITATION, again.clone());
    assert!(silent.next().now_or_never().is_none());
    if late {
        sleep(Duration::from_secs(2)).await;
    }
    let other = answer(begin(&endpoint, "tools/call", ELICITATION, again));
    let answered = timeout(Duration::from_secs(10), other).await.expect("it waits for nobody else");
    // The first client still finds all its messages when it begins to read.
    let mut last = None;
    while let Some(item) = silent.next().await {
        last = Some(item);
    }
    let Some(ReplyItem::Reply(reply)) = last else { panic!("it is answered") };
    let reply: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(result_text(&reply["result"]), "done");
    answered
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_keeps_no_other_from_the_result() {
    let answered = retry_beside_silent_client(1_000, false).await;
    assert_eq!(result_text(&answered["result"]), "done");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_too_late_does_not_wait_for_one_that_does_not_read() {
    // The log messages fill the channel of the first client, so that the result has to wait.
    let answered = retry_beside_silent_client(8, true).await;
    assert_eq!(answered["error"]["code"], crate::protocol::code::INVALID_PARAMS, "{answered}");
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_input_request_of_a_task_expires() {
    let server = TestServer { preparing: Duration::ZERO, answers: |outgoing| requesting_server(&outgoing) };
    let defer = policy::DeferPolicy { mode: policy::Mode::Always, after: Duration::ZERO, ..DEFER_AFTER_5S };
    let (endpoint, _) = endpoint(server, defer);
    let task = call(&endpoint, "tools/call", ELICITATION_AND_TASKS, json!({ "name": "t" })).await;
    let id = &task["result"]["taskId"];
    let park = policy::InputPolicy::default().park;
    let about = async || {
        call(&endpoint, "tasks/get", ELICITATION_AND_TASKS, json!({ "taskId": id })).await["result"].clone()
    };
    sleep(park - Duration::from_secs(1)).await;
    let waits = about().await;
    assert_eq!((&waits["status"], request_keys(&waits).len()), (&json!("input_required"), 1));
    sleep(Duration::from_secs(2)).await;
    let ended = about().await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(result_text(&ended["result"]), "cancel");
}

#[tokio::test(start_paused = true)]
async fn in_memory_no_call_becomes_a_task_once_the_proxy_stops() {
    let minute = Duration::from_secs(60);
    // The server responds after the threshold: at once, or after a retry of the client.
    for rounds in [0, 1] {
        let server = MultiRoundServer {
            rounds,
            takes: [minute * (1 - rounds as u32), minute],
            call_count: Arc::default(),
        };
        let (endpoint, signals) = endpoint_with_signals(server.into_upstream(), DEFER_AFTER_5S);
        let mut call = begin(&endpoint, "tools/call", ELICITATION_AND_TASKS, json!({ "name": "t" }));
        if rounds == 1 {
            let result = answer(call).await["result"].take();
            let params = json!({
                "name": "t", "requestState": result["requestState"], "inputResponses": accepting_responses(&request_keys(&result)),
            });
            signals[0].0.start();
            call = begin(&endpoint, "tools/call", ELICITATION_AND_TASKS, params);
        } else {
            assert!(call.next().now_or_never().is_none());
            sleep(Duration::from_secs(1)).await;
            signals[0].0.start();
        }
        let result = answer(call).await;
        assert!(result["result"]["content"].is_array(), "a result, not {result:#}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_during_shutdown_does_not_become_a_task_in_mode_always() {
    let server = MultiRoundServer { rounds: 1, takes: [Duration::ZERO; 2], call_count: Arc::default() };
    let (endpoint, signals) = endpoint_with_signals(server.into_upstream(), DEFER_AFTER_5S);
    let result =
        call(&endpoint, "tools/call", ELICITATION_AND_TASKS, json!({ "name": "t" })).await["result"].take();
    signals[0].0.start();
    // With another configuration, whose tools become tasks at once.
    let mut route = policy::Route::clone(endpoint.route());
    route.defer.mode = policy::Mode::Always;
    let endpoint = endpoint.reconfigured(Arc::new(route), Arc::new(SealKeyring::new([7; 32], &[])));
    let params = json!({
        "name": "t", "requestState": result["requestState"], "inputResponses": accepting_responses(&request_keys(&result)),
    });
    let answer = call(&endpoint, "tools/call", ELICITATION_AND_TASKS, params).await;
    assert_eq!(result_text(&answer["result"]), "age=accept name=accept", "{answer:#}");
}

/// The behaviour of a client, and how often its call counts as one that would have become a task; all times
/// in seconds.
struct Observation {
    /// How long the server takes to be described, for its first response, and for the next.
    takes: [u64; 3],
    /// The number of `input_required` rounds.
    rounds: usize,
    /// How long the client waits for the first response, and for the next.
    waits: [u64; 2],
    counted: usize,
}

impl Observation {
    /// The number of `would_defer` lines in this mode, and whether a handle was returned.
    async fn run(&self, mode: policy::Mode) -> (usize, bool) {
        let written = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&written);
        let take = move |_: &tracing::Level, line: &str| kept.lock().expect("whole").push_str(line);
        let lines = LogLayer::new(LineFormat::Text, || std::time::UNIX_EPOCH, take);
        let _written = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines));

        let [preparing, takes, later] = self.takes.map(Duration::from_secs);
        let server =
            MultiRoundServer { rounds: self.rounds, takes: [takes, later], call_count: Arc::default() };
        let server = TestServer { preparing, ..server.into_upstream() };
        let (endpoint, _) = endpoint(server, policy::DeferPolicy { mode, ..DEFER_AFTER_5S });
        let (mut params, mut has_handle) = (json!({ "name": "t" }), false);
        for waits in self.waits {
            let items = begin(&endpoint, "tools/call", ELICITATION_AND_TASKS, params.clone());
            let Ok(answer) = timeout(Duration::from_secs(waits), answer(items)).await else { break };
            let result = &answer["result"];
            has_handle |= result["resultType"] == "task";
            if result["resultType"] != "input_required" {
                break;
            }
            // The user takes longer than any threshold.
            sleep(Duration::from_secs(60)).await;
            params = json!({
                "name": "t",
                "requestState": result["requestState"],
                "inputResponses": accepting_responses(&request_keys(result)),
            });
        }
        // By then the disconnect has been detected.
        sleep(Duration::from_secs(3600)).await;
        let counted = written.lock().expect("whole").matches("event=would_defer").count();
        (counted, has_handle)
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_observed_once_where_mode_auto_would_have_made_it_a_task() {
    // Longer than any call takes.
    let stays = 1000;
    for (takes, rounds, waits, counted) in [
        ([0, 3, 0], 0, [stays, stays], 0),
        ([0, 10, 0], 0, [stays, stays], 1),
        // The handshake counts.
        ([10, 0, 0], 0, [stays, stays], 1),
        ([3, 3, 0], 0, [stays, stays], 1),
        // Input is requested after the threshold, or before it; and the retry takes long, or does not.
        ([0, 10, 0], 1, [stays, stays], 1),
        ([0, 10, 10], 1, [stays, stays], 1),
        ([0, 3, 3], 1, [stays, stays], 0),
        ([0, 3, 10], 1, [stays, stays], 1),
        // The client disconnects before the threshold, or after it.
        ([0, 10, 0], 0, [3, stays], 0),
        ([0, 10, 0], 0, [7, stays], 1),
        ([10, 0, 0], 0, [3, stays], 0),
        ([10, 0, 0], 0, [7, stays], 1),
        ([0, 3, 10], 1, [stays, 3], 0),
        ([0, 3, 10], 1, [stays, 7], 1),
        ([0, 10, 10], 1, [stays, 3], 1),
    ] {
        let observation = Observation { takes, rounds, waits, counted };
        let about = format!("takes {takes:?}, asks {rounds} times, waits {waits:?}");
        let (counted, has_handle) = observation.run(policy::Mode::Observe).await;
        assert_eq!((counted, has_handle), (observation.counted, false), "{about}");
        let (counted, has_handle) = observation.run(policy::Mode::Auto).await;
        let gives_up = waits.into_iter().any(|waits| waits < stays);
        assert_eq!(counted, 0, "{about}");
        assert!(gives_up || has_handle == (observation.counted == 1), "{about}: as in mode auto");
    }
}
