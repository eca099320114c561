//! One process of the proxy: a route and its tasks on a runtime of their own, which can be killed at any moment.

use super::{server::Server, stored_records::Records};
use crate::support::faulty_store::FaultyStore;
use bytes::Bytes;
use deferral::internals::{
    bridge::resume::SealKeyring,
    dialect::{
        Caller, Credentials, Principal,
        modern::{ModernMessage, read_message},
    },
    policy::{
        DeferPolicy, InputPolicy, LegacyTaskPolicy, Mode, PrincipalSource, ResumePolicy, Route, TaskQuotas,
        TicketPolicy, WaitPolicy,
    },
    protocol::{ClockReading, Frame, WallTime},
    proxy::{Endpoint, ReplyItem, RouteService as _, TaskLedger},
    runtime::{Clock, Drain, SteadyClock, SystemClock},
    store::{Store, StoreSecret},
};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

/// The process.
pub(super) struct Process {
    runtime: Runtime,
    pub(super) store: Arc<FaultyStore>,
    endpoint: Endpoint,
    ledger: Arc<TaskLedger>,
    clock: Arc<SteadyClock>,
    time: RealTime,
    /// To begin nothing new; to end; to listen no more.
    drains: [Drain; 3],
    /// How many requests have been answered.
    answered: Arc<AtomicUsize>,
}

/// A request of a client, and what it was answered with.
pub(super) struct Request {
    task: JoinHandle<()>,
    told: Arc<Mutex<Option<Told>>>,
}

/// When among all answers it came, and what it is.
pub(super) type Told = (usize, Value);

/// Real time, which continues from one process to the next, and the error of the wall clock, both in milliseconds.
#[derive(Clone, Default)]
pub(super) struct RealTime {
    pub(super) millis: u64,
    pub(super) wall_is_ahead: Arc<AtomicI64>,
    /// Since when the time advances with the clock of a process; `None` if no process runs.
    since: Option<Instant>,
}

/// How long a caller is waited for without whom its call cannot be taken up.
pub(super) const RESUME_WAIT: Duration = Duration::from_secs(10);
/// How long a result stays: less than a task is granted at a time could end its time earlier than was shown.
pub(super) const RETENTION: Duration = Duration::from_secs(60);
/// How long a call waits for the answers of its client.
pub(super) const PARK: Duration = Duration::from_secs(30);
/// How long a process that stops waits for its store.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// What is under way goes round in it: time does not move before everything waits.
const MOMENT: Duration = Duration::from_millis(1);

// === impl Process ===

impl Process {
    pub(super) fn start(
        server: &Server,
        records: &Records,
        always: bool,
        yields: bool,
        time: &RealTime,
    ) -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let within = runtime.enter();
        let time = RealTime { since: Some(SystemClock::new().now()), ..time.clone() };
        let wall = time.clone();
        let clock = Arc::new(SteadyClock::resume(records.stored_clock(), move || wall.wall()));
        let store = FaultyStore::around(Arc::new(records.clone()) as Arc<dyn Store>);
        if yields {
            store.yields();
        }
        let secret = StoreSecret::new(&[9; 32]);
        let quotas =
            TaskQuotas { polls_per_second: u32::MAX, misses_per_minute: u32::MAX, ..TaskQuotas::default() };
        let ledger = TaskLedger::new(store.clone(), Some(&secret), quotas, clock.clone());
        let [(draining, stopping), (overdue, too_late), (closing, closed)] =
            [Drain::new(), Drain::new(), Drain::new()];
        let endpoint = Endpoint::new(
            Arc::new(route(always)),
            Arc::new(server.clone()),
            Arc::clone(&ledger),
            clock.clone(),
            Arc::new(SealKeyring::new([7; 32], &[])),
            [stopping, too_late.clone(), closed],
        );
        runtime.spawn(Arc::clone(&ledger).maintain(vec![endpoint.clone()], too_late));
        drop(within);
        let (drains, answered) = ([draining, overdue, closing], Arc::default());
        Self { runtime, store, endpoint, ledger, clock, time, drains, answered }
    }

    pub(super) fn now(&self) -> ClockReading {
        let _within = self.runtime.enter();
        self.clock.reading()
    }

    pub(super) fn time(&self) -> RealTime {
        let _within = self.runtime.enter();
        self.time.now()
    }

    /// Everything goes round until it waits, and then for so long. Says whether the store has not halted meanwhile.
    pub(super) fn passes(&self, time: Duration) -> bool {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.store.halted() => false,
                () = sleep(MOMENT + time) => true,
            }
        })
    }

    /// Only so much of what is under way goes on.
    pub(super) fn goes_on(&self, steps: usize) {
        self.runtime.block_on(async {
            for _ in 0..steps {
                yield_now().await;
            }
        });
    }

    /// Stops it and waits for the end, unless its store has halted.
    pub(super) fn stops(&self, drain: Duration) {
        self.drains[0].start();
        if self.passes(drain) {
            self.drains[1].start();
            if self.passes(Duration::from_secs(2)) {
                self.drains[2].start();
                // As the program does: a store that stalls is not waited for.
                let _ = self.runtime.block_on(async { timeout(LAST_WORDS, self.ledger.close()).await });
            }
        }
    }

    /// The tasks that are at work here.
    pub(super) fn working(&self) -> usize {
        self.ledger.working_count()
    }

    /// It is no more, wherever it was.
    pub(super) fn dies(self, server: &Server) {
        // With the runtime goes whatever is at work; what is left then only knows, and does nothing.
        server.is_left_by(|| drop(self));
    }

    /// A client asks this.
    pub(super) fn asked(&self, who: usize, method: &'static str, name: &str, params: &str) -> Request {
        let told = Arc::new(Mutex::new(None));
        let (tell, endpoint, answered) =
            (Arc::clone(&told), self.endpoint.clone(), Arc::clone(&self.answered));
        let (call, capabilities) = read_request(method, name, params);
        let mut headers = HeaderMap::new();
        if who == 1 {
            headers.insert("authorization", HeaderValue::from_static("Bearer one"));
        }
        let caller = Caller {
            principal: principal(who),
            credentials: Credentials::from_request(&headers, &[]),
            capabilities,
            client_info: Default::default(),
            match_headers: None,
            rollout_membership: Default::default(),
        };
        let task = self.runtime.spawn(async move {
            let mut items = endpoint.call(call, caller);
            while let Some(item) = items.next().await {
                let ReplyItem::Reply(mut reply) = item else { continue };
                let said = serde_json::from_slice(&reply.body).expect("JSON");
                let number = answered.fetch_add(1, Ordering::Relaxed);
                *tell.lock().expect("nothing panics while it is held") = Some((number, said));
                if let Some(commit) = reply.commit.take() {
                    commit.confirm();
                }
            }
        });
        Request { task, told }
    }
}

// === impl Request ===

impl Request {
    /// Its answer, once.
    pub(super) fn answer(&self) -> Option<Told> {
        self.told.lock().expect("nothing panics while it is held").take()
    }

    /// Whether it has a response that was not read yet.
    pub(super) fn is_answered(&self) -> bool {
        self.told.lock().expect("nothing panics while it is held").is_some()
    }

    /// Its client waits no longer.
    pub(super) fn leaves(self) {
        self.task.abort();
    }
}

/// Who these are: the first shows nothing, the second does.
pub(super) fn principal(who: usize) -> Principal {
    Principal::from_bytes([u8::try_from(who).expect("few") + 1; 16])
}

fn read_request(
    method: &str,
    name: &str,
    params: &str,
) -> (Arc<deferral::internals::dialect::Call>, Arc<deferral::internals::protocol::Capabilities>) {
    const DECLARED: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{DECLARED},{params}}}}}"#);
    let mut headers = HeaderMap::new();
    headers.insert("mcp-protocol-version", HeaderValue::from_static("2026-07-28"));
    headers.insert("mcp-method", HeaderValue::from_str(method).expect("a header"));
    headers.insert("mcp-name", HeaderValue::from_str(name).expect("a header"));
    let Ok(ModernMessage::Request(call, capabilities)) =
        read_message(Frame::parse(Bytes::from(body)), &headers, None)
    else {
        panic!("{method} {params} is no request")
    };
    (call, capabilities)
}

/// A route for tests that speak to no HTTP.
pub(crate) fn route(always: bool) -> Route {
    let mode = if always { Mode::Always } else { Mode::Auto };
    Route {
        path: "/mcp".into(),
        defer: DeferPolicy { mode, after: Duration::from_secs(5), retention: RETENTION, rollout: None },
        tools: Vec::new(),
        principal: PrincipalSource::Authorization,
        input_policy: InputPolicy { park: PARK, ..InputPolicy::default() },
        legacy_tasks: LegacyTaskPolicy::default(),
        resume: ResumePolicy { credentials_timeout: RESUME_WAIT, ..ResumePolicy::default() },
        wait_policy: WaitPolicy::default(),
        session_headers: Vec::new(),
        limits: Default::default(),
        queue: Default::default(),
        timeout: None,
        response_headers: Vec::new(),
        adds_forwarded_header: false,
        empty_contents_is_error: false,
        tickets: TicketPolicy::default(),
    }
}

// === impl RealTime ===

impl RealTime {
    pub(super) fn at(millis: u64) -> Self {
        Self { millis, ..Self::default() }
    }

    /// The current time, which then stands still.
    fn now(&self) -> Self {
        let passed = self.since.map_or(Duration::ZERO, |since| SystemClock::new().now() - since);
        let passed = u64::try_from(passed.as_millis()).expect("not for ever");
        Self { millis: self.millis + passed, since: None, ..self.clone() }
    }

    /// Time of the wall clock.
    pub(super) fn wall(&self) -> WallTime {
        WallTime::from_millis(
            self.now().millis.saturating_add_signed(self.wall_is_ahead.load(Ordering::Relaxed)),
        )
    }
}
