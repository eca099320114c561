//! Accepts connections and finds what is asked for.

use super::{
    answer::{Answer, problem},
    browser::OperatorAccess,
    events::{self, Events},
    gate::{self, Gate},
    health,
    history::{self, History},
    listener::{self, Bounds, Serves, Site},
    made_token::{MadeToken, TokenFolder},
    processes::Servers,
    reload::Reloads,
    router::{self, Asked},
    routes::ShownRoute,
    sign_in::SignIn,
};
use crate::{
    front::{Callers, TlsError, TlsPaths, acceptor},
    policy::Tokens,
    proxy::{Ledger, Operators},
    runtime::{Listener, Live, Net, Receiving, Stopping},
};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use std::{error::Error as StdError, io, net::SocketAddr, sync::Arc, time::Duration};
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
    /// Folders for the file of the token that is made at start; the first that takes it has it. Default none: the
    /// token is in no file.
    pub token_folders: Vec<TokenFolder>,
}

/// What operators are shown, and may change.
#[derive(Clone)]
pub struct Parts {
    /// The names of callers that have one.
    pub callers: Callers,
    /// The names under which operators reach the address.
    pub access: OperatorAccess,
    /// The token that holds where none is configured.
    pub made_token: Arc<MadeToken>,
    /// One-time codes and sessions of the page.
    pub sign_in: Arc<SignIn>,
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
    /// Calls a second over the last hour.
    pub history: Arc<History>,
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
    /// The page, for people. No secret is in it.
    pub url: String,
    /// Serves until it is aborted, and takes its connections with it.
    pub task: JoinHandle<()>,
    shared: Live<Shared>,
}

/// How operators are let in from now on.
pub struct Prepared {
    gate: Gate,
    tls: Option<TlsAcceptor>,
}

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
    let tls = tls_of(&config)?;
    let listener = Net::System.listen(address).map_err(|source| Error::Bind { address, source })?;
    let address = listener.address().unwrap_or(address);
    let gate = Gate::of(&config, &parts, address);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let shared = Live::new(Shared { parts: Arc::new(parts), gate, tls });
    let task = tokio::spawn(accept(listener, shared.clone()));
    Ok(Bound { address, url: format!("{scheme}://{address}/"), task, shared })
}

async fn accept(listener: Listener, shared: Live<Shared>) {
    // Dropped with this task.
    let mut own = JoinSet::new();
    let parts = shared.clone();
    own.spawn(events::told(move || Arc::clone(&parts.now().parts)));
    let parts = shared.clone();
    own.spawn(history::keep(move || Arc::clone(&parts.now().parts)));
    let bounds = Bounds { connections: CONNECTIONS, probes: PROBES, name: "admin" };
    listener::accept(listener, shared, bounds).await;
}

async fn answer<B>(request: Request<B>, shared: &Shared, serves: Serves, receiving: Receiving<'_>) -> Answer
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let (mut head, body) = request.into_parts();
    if let Err(denied) = shared.parts.access.check(&head.uri, &head.headers) {
        denied.log(&head);
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
            "all {CONNECTIONS} connections of this address are in use; close a page, or try again \
             (`/live` and `/ready` still respond)"
        );
        let mut answer = problem(StatusCode::SERVICE_UNAVAILABLE, &error);
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return answer;
    }
    if let Err(answer) = shared.gate.admit(served.may, &mut head.headers) {
        return *answer;
    }
    // What is read to its end leaves the connection to the next request.
    let body = timeout(READ_BODY, Limited::new(body, BODY_BYTES).collect()).await;
    drop(receiving);
    match body {
        Ok(Ok(body)) => {
            let asked = Asked { body: body.to_bytes(), ..asked };
            (served.answer)(Arc::clone(&shared.parts), asked).await
        }
        Ok(Err(_)) => {
            let error = format!("the body was cut off, or is longer than {BODY_BYTES} bytes");
            problem(StatusCode::PAYLOAD_TOO_LARGE, &error)
        }
        Err(_) => problem(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
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

fn tls_of(config: &Config) -> Result<Option<TlsAcceptor>, Error> {
    Ok(config.tls.as_ref().map(|paths| acceptor(paths, &[b"http/1.1"])).transpose()?)
}

// === impl Bound ===

impl Bound {
    /// Gets ready to let operators in by another configuration, at the same address.
    ///
    /// # Errors
    /// [`Error::Tls`] names the file.
    pub fn prepare(&self, config: &Config) -> Result<Prepared, Error> {
        let parts = &self.shared.now().parts;
        Ok(Prepared { tls: tls_of(config)?, gate: Gate::of(config, parts, self.address) })
    }

    /// What operators are shown.
    pub fn parts(&self) -> Parts {
        Parts::clone(&self.shared.now().parts)
    }

    /// From the next request on they are let in so, and shown this. Sessions end where the token is another one.
    pub fn renew(&self, Prepared { gate, tls }: Prepared, parts: Parts) {
        if self.shared.now().gate.tokens != gate.tokens {
            parts.sign_in.clear();
        }
        self.shared.set(Shared { parts: Arc::new(parts), gate, tls });
    }

    /// What the operator is told on the standard error once clients are served. Only a terminal is shown a secret: a
    /// one-time code, and the token itself where it is in no file.
    pub fn ready_lines(&self, is_terminal: bool) -> Vec<String> {
        let made_token = self.made_token();
        let is_made = self.shared.now().gate.tokens == *made_token.tokens();
        let place = is_made.then(|| made_token.place());
        if is_terminal {
            let link = format!("admin: {}", self.link_with_code());
            let token =
                matches!(place, Some(Err(_))).then(|| format!("admin token: {}", made_token.expose()));
            return [link].into_iter().chain(token).collect();
        }
        let token = place.map(|place| match place {
            Ok(path) => format!("admin token: {}", path.display()),
            Err(why) => format!("admin token: none ({why}; set `admin.token`)"),
        });
        [format!("admin: {}", self.url)].into_iter().chain(token).collect()
    }

    /// The page with a one-time code, which signs a browser in. A secret until it is used, or some minutes old.
    pub fn link_with_code(&self) -> String {
        format!("{}#code={}", self.url, self.shared.now().parts.sign_in.issue_code())
    }

    /// The token that was made at start, for the program's own use and for tests.
    pub fn made_token(&self) -> Arc<MadeToken> {
        Arc::clone(&self.shared.now().parts.made_token)
    }

    /// Ends the server with its connections, and removes the token's file.
    pub fn stop(self) {
        self.made_token().remove();
        self.task.abort();
    }
}

// === impl Gate ===

impl Gate {
    /// How a configuration lets operators in. The token that was made holds where none is configured, and is written
    /// to its file then.
    fn of(config: &Config, parts: &Parts, address: SocketAddr) -> Self {
        let Parts { made_token, sign_in, .. } = parts;
        let is_made = config.tokens.is_empty();
        if is_made {
            made_token.write(address);
        }
        Self {
            is_exposed: config.is_exposed(),
            where_found: match made_token.place() {
                _ if !is_made => gate::CONFIGURED.to_owned(),
                Ok(path) => format!("it is in the file `{}`", path.display()),
                Err(why) => format!("the token generated at start is in no file: {why}; set `admin.token`"),
            },
            tokens: if is_made { made_token.tokens().clone() } else { config.tokens.clone() },
            sign_in: Arc::clone(sign_in),
        }
    }
}

// === impl Config ===

impl Config {
    /// At this address, with a token that is made at start and without TLS.
    pub fn on(listen: SocketAddr) -> Self {
        Self { listen, tokens: Tokens::default(), tls: None, token_folders: Vec::new() }
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
        admin::listener::{Peer, WRITE},
        front::Paced,
        policy::{Access, Quotas},
        runtime::{Activity, Clock, SystemClock},
        store::Memory,
    };
    use std::net::{IpAddr, Ipv4Addr};
    use tokio::{
        io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

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
            access: OperatorAccess::of(&Access::default()),
            made_token: Arc::new(MadeToken::new(Vec::new())),
            sign_in: Arc::new(SignIn::new(Arc::new(SystemClock::new()))),
            callers: Callers::default(),
            servers: Servers::new(),
            routes: Vec::new(),
            settings: "{}".into(),
            operators: Arc::new(Operators::new(Arc::clone(&ledger), Arc::default())),
            ledger,
            stopping,
            needs_servers: false,
            events: Arc::new(Events::new("2026-07-28T10:30:00.000Z".to_owned())),
            history: Arc::default(),
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
        let parts = Arc::new(parts(ledger(), stopping));
        let gate = Gate::of(&Config::on(ANYWHERE), &parts, ANYWHERE);
        let shared = Live::new(Shared { parts: Arc::clone(&parts), gate, tls: None });
        let telling = tokio::spawn(events::told(move || Arc::clone(&parts)));
        let watch = |room: usize| {
            let (client, server) = tokio::io::duplex(room);
            let shared = shared.clone();
            let serving = async move {
                let activity = Arc::new(Activity::new(SystemClock::new().now()));
                let paced = Paced::new(server, WRITE);
                listener::connection((paced, Peer(None)), &shared, &activity, Serves::Everything).await;
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
