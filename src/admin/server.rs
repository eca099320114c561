//! Accepts connections and finds what is asked for.

use super::{
    answer::{Answer, problem},
    events::{self, Events},
    gate::{self, Gate},
    health,
    listener::{self, Bounds, Serves, Site},
    processes::Servers,
    reload::Reloads,
    router::{self, Asked},
    routes::ShownRoute,
};
use crate::{
    front::{Callers, TlsError, TlsPaths, acceptor},
    policy::{Access, Tokens},
    proxy::{Ledger, Operators},
    runtime::{Listener, Live, Net, Receiving, Stopping, random},
};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use std::{error::Error as StdError, fmt, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

/// Connections at a time, and beyond them those that serve one request of a probe each. Operators are few, and the
/// descriptors that are kept for them are not many.
const CONNECTIONS: usize = 18;
const PROBES: usize = 6;

/// For a body. Nothing that is served takes one.
const READ_BODY: Duration = Duration::from_secs(10);

/// Bytes of a body.
const BODY_BYTES: usize = 16 << 10;

/// How operators are met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Default `127.0.0.1:8809`. One that is not on loopback needs `tls` and `tokens`; whoever makes a
    /// configuration sees to that.
    pub listen: SocketAddr,
    /// What an operator shows to change something, and to read where others can reach the address. Default
    /// none: a token is made at start, and ends with the process.
    pub tokens: Tokens,
    /// Serve TLS, and nothing else. Default off.
    pub tls: Option<TlsPaths>,
}

/// What operators are shown, and may change.
#[derive(Clone)]
pub struct Parts {
    /// Hosts and origins that may come in: those of the clients' address.
    pub access: Access,
    /// The names of callers that have one.
    pub callers: Callers,
    pub servers: Servers,
    pub routes: Vec<ShownRoute>,
    /// The configuration in force, as JSON without secrets.
    pub settings: Bytes,
    pub ledger: Arc<Ledger>,
    pub operators: Arc<Operators>,
    pub stopping: Stopping,
    /// Whether `/ready` needs each route's server.
    pub needs_servers: bool,
    pub events: Arc<Events>,
    /// Where to ask for the configuration to be read again.
    pub reloads: Reloads,
}

// === impl Parts ===

impl Parts {
    /// Whether clients should be sent here, and why not.
    pub(super) fn ready(&self) -> (StatusCode, Bytes) {
        health::ready(&self.stopping, &self.ledger, self.needs_servers.then_some(&self.servers))
    }
}

/// What every request shares, until the configuration is read again.
struct Shared {
    parts: Arc<Parts>,
    gate: Gate,
    tls: Option<TlsAcceptor>,
}

/// A server at work.
pub struct Bound {
    /// What is really listened on: port 0 has become a number.
    pub address: SocketAddr,
    /// For people: where it is, with the token where one was made.
    pub link: Link,
    /// Serves until it is aborted, and takes its connections with it.
    pub task: JoinHandle<()>,
    shared: Live<Shared>,
    /// The token that was made, where none is configured.
    made: Tokens,
}

/// How operators are let in from now on.
pub struct Prepared {
    gate: Gate,
    tls: Option<TlsAcceptor>,
}

/// A URL that may hold a token: shown to whoever started the proxy, and to no log. `Debug` hides it.
#[derive(Clone)]
pub struct Link(String);

/// Why the server cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address} (admin): {source}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {address} (metrics): {source}")]
    Metrics { address: SocketAddr, source: io::Error },
    #[error("admin: {0}")]
    Tls(#[from] TlsError),
}

/// Begins to serve operators. Must be called within a runtime, once clients are served: from here
/// on `/ready` says so.
///
/// # Errors
/// [`Error`] names the address or the file.
pub fn serve(config: Config, parts: Parts) -> Result<Bound, Error> {
    let address = config.listen;
    let made = config.tokens.is_empty().then(|| hex(&random::<32>()));
    let tokens = made.as_deref().map(gate::only).unwrap_or_default();
    let Prepared { gate, tls } = Prepared::of(&config, &tokens)?;
    let listener = Net::System.listen(address).map_err(|source| Error::Bind { address, source })?;
    let address = listener.address().unwrap_or(address);
    let link = Link::new(address, tls.is_some(), made.as_deref());
    let shared = Live::new(Shared { parts: Arc::new(parts), gate, tls });
    let task = tokio::spawn(accept(listener, shared.clone()));
    Ok(Bound { address, link, task, shared, made: tokens })
}

async fn accept(listener: Listener, shared: Live<Shared>) {
    // Dropped with this task.
    let mut own = JoinSet::new();
    let parts = shared.clone();
    own.spawn(events::told(move || Arc::clone(&parts.now().parts)));
    let bounds = Bounds { connections: CONNECTIONS, probes: PROBES, name: "admin" };
    listener::accept(listener, shared, bounds).await;
}

async fn answer<B>(request: Request<B>, shared: &Shared, serves: Serves, receiving: Receiving<'_>) -> Answer
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let (mut head, body) = request.into_parts();
    // A web page must not reach an operator's tools through a reader's browser.
    if let Err(denied) = shared.parts.access.check_head(&head.uri, &head.headers) {
        return problem(StatusCode::FORBIDDEN, &denied.to_string());
    }
    let (served, asked) = match router::find(&head.method, head.uri.path()) {
        Ok((served, asked)) => {
            (served, Asked { query: head.uri.query().unwrap_or_default().to_owned(), ..asked })
        }
        Err(answer) => return *answer,
    };
    if serves == Serves::OneProbe && !served.is_probe() {
        let error = format!(
            "all {CONNECTIONS} connections of this address are at work; close a page, or try again (`/live` and \
             `/ready` are answered all the same)"
        );
        let mut answer = problem(StatusCode::SERVICE_UNAVAILABLE, &error);
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return answer;
    }
    if let Err(answer) = shared.gate.admit(served.may, &mut head.headers) {
        return *answer;
    }
    // Nothing that is served takes one; what is read to its end leaves the connection to the next request.
    let body = timeout(READ_BODY, Limited::new(body, BODY_BYTES).collect()).await;
    drop(receiving);
    match body {
        Ok(Ok(_)) => (served.answer)(Arc::clone(&shared.parts), asked).await,
        Ok(Err(_)) => {
            let error = format!("the body is cut off, or longer than {BODY_BYTES} bytes");
            problem(StatusCode::PAYLOAD_TOO_LARGE, &error)
        }
        Err(_) => problem(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
    }
}

impl Site for Live<Shared> {
    fn tls(&self) -> Option<TlsAcceptor> {
        self.now().tls.clone()
    }

    async fn answer(&self, request: Request<Incoming>, serves: Serves, receiving: Receiving<'_>) -> Answer {
        answer(request, &self.kept(), serves, receiving).await
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// === impl Bound ===

impl Bound {
    /// Gets ready to let operators in by another configuration, at the same address.
    ///
    /// # Errors
    /// [`Error::Tls`] names the file.
    pub fn prepare(&self, config: &Config) -> Result<Prepared, Error> {
        Prepared::of(config, &self.made)
    }

    /// What operators are shown.
    pub fn parts(&self) -> Parts {
        Parts::clone(&self.shared.now().parts)
    }

    /// From the next request on they are let in so, and shown this.
    pub fn renew(&self, Prepared { gate, tls }: Prepared, parts: Parts) {
        self.shared.set(Shared { parts: Arc::new(parts), gate, tls });
    }
}

// === impl Prepared ===

impl Prepared {
    /// `made` is the token that holds where none is configured.
    fn of(config: &Config, made: &Tokens) -> Result<Self, Error> {
        let tls = config.tls.as_ref().map(|paths| acceptor(paths, &[b"http/1.1"])).transpose()?;
        let is_made = config.tokens.is_empty();
        let gate = Gate {
            is_exposed: config.is_exposed(),
            where_found: if is_made { gate::PRINTED } else { gate::CONFIGURED },
            tokens: if is_made { made.clone() } else { config.tokens.clone() },
        };
        Ok(Self { gate, tls })
    }
}

// === impl Link ===

impl Link {
    fn new(address: SocketAddr, tls: bool, token: Option<&str>) -> Self {
        let scheme = if tls { "https" } else { "http" };
        // Behind `#`, which no browser sends.
        let token = token.map(|token| format!("#token={token}")).unwrap_or_default();
        Self(format!("{scheme}://{address}/{token}"))
    }

    /// The URL, for whoever started the proxy.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link(..)")
    }
}

// === impl Config ===

impl Config {
    /// At this address, with a token that is made at start and without TLS.
    pub fn on(listen: SocketAddr) -> Self {
        Self { listen, tokens: Tokens::default(), tls: None }
    }

    /// Whether others than this machine can reach the address.
    pub fn is_exposed(&self) -> bool {
        !self.listen.ip().to_canonical().is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Drain;
    use crate::{
        admin::listener::WRITE,
        front::Paced,
        policy::Quotas,
        runtime::{Activity, Clock, SystemClock},
        store::Memory,
    };
    use std::net::Ipv4Addr;
    use tokio::{
        io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(address).await.expect("it listens");
        let request = format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    fn start(stopping: Stopping) -> Bound {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let ledger = ledger();
        serve(Config::on(listen), parts(ledger, stopping)).expect("a free port")
    }

    fn parts(ledger: Arc<Ledger>, stopping: Stopping) -> Parts {
        Parts {
            access: Access::default(),
            callers: Callers::default(),
            servers: Servers::new(),
            routes: Vec::new(),
            settings: "{}".into(),
            operators: Arc::new(Operators::new(Arc::clone(&ledger), Arc::default())),
            ledger,
            stopping,
            needs_servers: false,
            events: Arc::new(Events::new("2026-07-28T10:30:00.000Z".to_owned())),
            reloads: Reloads::none(),
        }
    }

    fn ledger() -> Arc<Ledger> {
        let (quotas, clock) = (Quotas::default(), Arc::new(SystemClock::new()));
        Ledger::new(Arc::new(Memory::default()), None, quotas, clock)
    }

    #[tokio::test]
    async fn a_stopping_proxy_lives_but_is_not_ready() {
        let (drain, stopping) = Drain::new();
        let admin = start(stopping);
        assert!(ask(admin.address, "GET /live").await.starts_with("HTTP/1.1 200 "));
        let ready = ask(admin.address, "GET /ready").await;
        assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with(r#"{"status":"ready"}"#), "{ready}");
        assert_eq!(drain.stop(Duration::from_secs(600)).await, 0, "it is not waited for");
        let ready = ask(admin.address, "GET /ready").await;
        assert!(ready.starts_with("HTTP/1.1 503 ") && ready.ends_with(r#"{"status":"stopping"}"#), "{ready}");
        assert!(ask(admin.address, "GET /live").await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn anything_else_is_refused_with_what_is_served() {
        let (_drain, stopping) = Drain::new();
        let admin = start(stopping);
        let answer = ask(admin.address, "GET /health").await;
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("/live, /ready"), "{answer}");
        let answer = ask(admin.address, "POST /ready").await;
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD"), "{answer}");
        let answer = ask(admin.address, "GET http://evil.example.com/live").await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("access.hosts"), "{answer}");
    }

    /// Reads what comes until the end of an event.
    async fn event(socket: &mut (impl AsyncRead + Unpin)) -> String {
        let mut heard = String::new();
        while !heard.ends_with("\n\n\r\n") {
            let mut some = [0; 4096];
            let length = socket.read(&mut some).await.expect("it goes on");
            assert!(length > 0, "it ends: {heard}");
            heard.push_str(std::str::from_utf8(&some[..length]).expect("text"));
        }
        heard
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_events_that_does_not_read_is_let_go_and_harms_no_other() {
        const WATCH: &[u8] = b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let (_drain, stopping) = Drain::new();
        let gate = Gate { tokens: gate::only("x"), is_exposed: false, where_found: gate::PRINTED };
        let parts = Arc::new(parts(ledger(), stopping));
        let shared = Live::new(Shared { parts: Arc::clone(&parts), gate, tls: None });
        let telling = tokio::spawn(events::told(move || Arc::clone(&parts)));
        let watch = |room: usize| {
            let (client, server) = tokio::io::duplex(room);
            let shared = shared.clone();
            let serving = async move {
                let activity = Arc::new(Activity::new(SystemClock::new().now()));
                let paced = Paced::new(server, WRITE);
                listener::connection(paced, &shared, &activity, Serves::Everything).await;
            };
            (client, tokio::spawn(serving))
        };
        let (mut silent, of_silent) = watch(512);
        silent.write_all(WATCH).await.expect("it is read");
        let (mut reader, of_reader) = watch(1 << 20);
        reader.write_all(WATCH).await.expect("it is read");
        let clock = SystemClock::new();
        let began = clock.now();
        // The time of this test goes on only when all wait for it.
        for _ in 0..30 {
            event(&mut reader).await;
        }
        assert!(clock.now() - began >= WRITE + Duration::from_secs(10));
        assert!(of_silent.is_finished() && !of_reader.is_finished());
        of_reader.abort();
        telling.abort();
    }

    #[tokio::test]
    async fn ending_the_task_ends_its_connections() {
        let (_drain, stopping) = Drain::new();
        let admin = start(stopping);
        let mut open = TcpStream::connect(admin.address).await.expect("it listens");
        open.write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it reads");
        assert!(open.read(&mut [0; 1024]).await.expect("an answer") > 0);
        admin.task.abort();
        let mut rest = Vec::new();
        open.read_to_end(&mut rest).await.expect("it is closed");
    }
}
