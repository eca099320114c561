//! The admin server: checks requests and dispatches them.

use super::{
    browser::OperatorAccess,
    events::{self, EventStreams},
    gate::{self, TokenGate},
    generated_token::{GeneratedToken, TokenFolder},
    health,
    history::{self, CallHistory},
    listener::{self, ListenerBounds, ListenerService, RequestScope},
    processes::RouteServers,
    reload::ReloadSender,
    response::{AdminResponse, error_response},
    router::{self, AdminRequest},
    routes::RouteEntry,
    sign_in::BrowserSignIn,
};
use crate::{
    front::{PrincipalNames, TlsError, TlsPaths, acceptor},
    policy::TokenSet,
    proxy::{OperatorTasks, TaskLedger},
    runtime::{DrainWatch, IncompleteBody, Network, NetworkListener, SwapCell},
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

/// Maximum number of connections. Operators are few, and file descriptors reserved for them are limited.
const CONNECTIONS: usize = 18;
/// Maximum number of additional connections, for one health check each.
const PROBES: usize = 6;

/// Time limit of a request body.
const READ_BODY: Duration = Duration::from_secs(10);

/// Maximum size of a request body, in bytes.
const BODY_BYTES: usize = 16 << 10;

/// Configuration of the admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address to listen on. An address that is not on loopback requires `tls` and `tokens`, which the
    /// configuration checks. Default `127.0.0.1:8809`.
    pub listen: SocketAddr,
    /// Admin tokens, required for changes, and for reading if other machines can reach the address. Default
    /// empty: a token is generated at start.
    pub tokens: TokenSet,
    /// TLS; the listener then serves HTTPS only. Default off.
    pub tls: Option<TlsPaths>,
    /// Folders for the file of the generated token, in order of preference. Default empty: no file is
    /// written.
    pub token_folders: Vec<TokenFolder>,
}

/// The data and operations that the endpoints use.
#[derive(Clone)]
pub struct AdminParts {
    /// Token names by principal, for the principals that have one.
    pub principal_names: PrincipalNames,
    /// Hosts that are allowed on the admin address.
    pub access: OperatorAccess,
    /// The token that is valid if none is configured.
    pub generated_token: Arc<GeneratedToken>,
    /// One-time codes and sessions of the page.
    pub sign_in: Arc<BrowserSignIn>,
    pub servers: RouteServers,
    pub routes: Vec<RouteEntry>,
    /// The configuration in force, as JSON without secrets.
    pub settings: Bytes,
    /// All tasks.
    pub ledger: Arc<TaskLedger>,
    /// Lists and cancels tasks of all principals.
    pub operators: Arc<OperatorTasks>,
    /// Signalled when the shutdown begins.
    pub stopping: DrainWatch,
    /// Whether `/ready` requires that the server of each route is reachable.
    pub needs_servers: bool,
    /// The open `/events` streams.
    pub events: Arc<EventStreams>,
    /// Calls per second over the last hour.
    pub history: Arc<CallHistory>,
    /// Sends reload requests.
    pub reloads: ReloadSender,
}

// === impl AdminParts ===

impl AdminParts {
    /// Returns the status and body of `/ready`.
    pub(super) fn ready(&self) -> (StatusCode, Bytes) {
        health::readiness(&self.stopping, &self.ledger, self.needs_servers.then_some(&self.servers))
    }
}

/// State that all requests share; a reload replaces it.
struct ServerState {
    parts: Arc<AdminParts>,
    gate: TokenGate,
    tls: Option<TlsAcceptor>,
}

/// A running admin server.
pub struct AdminServer {
    /// The bound address, with the actual port.
    pub address: SocketAddr,
    /// The URL of the page, without a secret.
    pub url: String,
    /// The task that serves until it is aborted, together with its connections.
    pub task: JoinHandle<()>,
    shared: SwapCell<ServerState>,
}

/// Authorization and TLS of another configuration, for a reload.
pub struct PreparedAccess {
    gate: TokenGate,
    tls: Option<TlsAcceptor>,
}

/// Error of an admin or metrics listener that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address} (admin): {source}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {address} (metrics): {source}")]
    Metrics { address: SocketAddr, source: io::Error },
    #[error("admin: {0}")]
    Tls(#[from] TlsError),
}

/// Starts to serve operators. Must be called within a runtime, when clients are already served, because
/// `/ready` responds with 200 from then on.
///
/// # Errors
/// [`Error`] names the address or the file that is at fault.
pub fn serve(config: Config, parts: AdminParts) -> Result<AdminServer, Error> {
    let address = config.listen;
    let tls = tls_acceptor(&config)?;
    let listener = Network::System.listen(address).map_err(|source| Error::Bind { address, source })?;
    let address = listener.address().unwrap_or(address);
    let gate = TokenGate::from_config(&config, &parts, address);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let shared = SwapCell::new(ServerState { parts: Arc::new(parts), gate, tls });
    let task = tokio::spawn(accept(listener, shared.clone()));
    Ok(AdminServer { address, url: format!("{scheme}://{address}/"), task, shared })
}

async fn accept(listener: NetworkListener, shared: SwapCell<ServerState>) {
    // The background tasks end when this future is dropped.
    let mut background_tasks = JoinSet::new();
    let parts = shared.clone();
    background_tasks.spawn(events::publish_periodically(move || Arc::clone(&parts.load().parts)));
    let parts = shared.clone();
    background_tasks.spawn(history::record_periodically(move || Arc::clone(&parts.load().parts)));
    let bounds = ListenerBounds { connections: CONNECTIONS, probes: PROBES, name: "admin" };
    listener::accept(listener, shared, bounds).await;
}

async fn respond<B>(
    request: Request<B>,
    shared: &ServerState,
    scope: RequestScope,
    receiving: IncompleteBody<'_>,
) -> AdminResponse
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let (mut head, body) = request.into_parts();
    if let Err(denied) = shared.parts.access.check(&head.uri, &head.headers) {
        denied.log(&head);
        return error_response(StatusCode::FORBIDDEN, &denied.to_string());
    }
    let (endpoint, admin_request) = match router::find_endpoint(&head.method, head.uri.path()) {
        Ok((endpoint, admin_request)) => (
            endpoint,
            AdminRequest { query: head.uri.query().unwrap_or_default().to_owned(), ..admin_request },
        ),
        Err(response) => return *response,
    };
    if scope == RequestScope::OneProbe && !endpoint.is_probe() {
        let error = format!(
            "all {CONNECTIONS} connections of this address are in use; close a page, or try again \
             (`/live` and `/ready` still respond)"
        );
        let mut response = error_response(StatusCode::SERVICE_UNAVAILABLE, &error);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return response;
    }
    if let Err(response) = shared.gate.admit(endpoint.requires, &mut head.headers) {
        return *response;
    }
    // The body is read to its end, because the connection stays usable then.
    let body = timeout(READ_BODY, Limited::new(body, BODY_BYTES).collect()).await;
    drop(receiving);
    match body {
        Ok(Ok(body)) => {
            let admin_request = AdminRequest { body: body.to_bytes(), ..admin_request };
            (endpoint.handler)(Arc::clone(&shared.parts), admin_request).await
        }
        Ok(Err(_)) => {
            let error = format!("the body was cut off, or is longer than {BODY_BYTES} bytes");
            error_response(StatusCode::PAYLOAD_TOO_LARGE, &error)
        }
        Err(_) => error_response(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
    }
}

impl ListenerService for SwapCell<ServerState> {
    fn tls(&self) -> Option<TlsAcceptor> {
        self.load().tls.clone()
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        scope: RequestScope,
        receiving: IncompleteBody<'_>,
    ) -> AdminResponse {
        respond(request, &self.load_full(), scope, receiving).await
    }
}

fn tls_acceptor(config: &Config) -> Result<Option<TlsAcceptor>, Error> {
    Ok(config.tls.as_ref().map(|paths| acceptor(paths, &[b"http/1.1"])).transpose()?)
}

// === impl AdminServer ===

impl AdminServer {
    /// Prepares authorization and TLS of another configuration. The address stays the same.
    ///
    /// # Errors
    /// [`Error::Tls`] names the certificate or key file that is at fault.
    pub fn prepare(&self, config: &Config) -> Result<PreparedAccess, Error> {
        let parts = &self.shared.load().parts;
        Ok(PreparedAccess {
            tls: tls_acceptor(config)?,
            gate: TokenGate::from_config(config, parts, self.address),
        })
    }

    /// Returns a copy of the data and operations that the endpoints use now.
    pub fn parts(&self) -> AdminParts {
        AdminParts::clone(&self.shared.load().parts)
    }

    /// Applies a reload, from the next request on. Ends all browser sessions if the token changed.
    pub fn apply_reload(&self, PreparedAccess { gate, tls }: PreparedAccess, parts: AdminParts) {
        if self.shared.load().gate.tokens != gate.tokens {
            parts.sign_in.clear();
        }
        self.shared.set(ServerState { parts: Arc::new(parts), gate, tls });
    }

    /// Returns the lines that the program prints to standard error once clients are served. A secret is
    /// included on a terminal only: a one-time code, and the token itself if it is in no file.
    pub fn ready_lines(&self, is_terminal: bool) -> Vec<String> {
        let generated_token = self.generated_token();
        let is_generated = self.shared.load().gate.tokens == *generated_token.tokens();
        let file = is_generated.then(|| generated_token.path());
        if is_terminal {
            let link = format!("admin: {}", self.link_with_code());
            let token =
                matches!(file, Some(Err(_))).then(|| format!("admin token: {}", generated_token.expose()));
            return [link].into_iter().chain(token).collect();
        }
        let token = file.map(|file| match file {
            Ok(path) => format!("admin token: {}", path.display()),
            Err(reason) => format!("admin token: none ({reason}; set `admin.token`)"),
        });
        [format!("admin: {}", self.url)].into_iter().chain(token).collect()
    }

    /// Returns the URL of the page with a new one-time code, which signs a browser in. Secret until it is
    /// used or expires.
    pub fn link_with_code(&self) -> String {
        format!("{}#code={}", self.url, self.shared.load().parts.sign_in.issue_code())
    }

    /// Returns the token that was generated at start, for the program itself and for tests.
    pub fn generated_token(&self) -> Arc<GeneratedToken> {
        Arc::clone(&self.shared.load().parts.generated_token)
    }

    /// Stops the server with its connections, and removes the token file.
    pub fn stop(self) {
        self.generated_token().remove();
        self.task.abort();
    }
}

// === impl TokenGate ===

impl TokenGate {
    /// Creates the authorization of a configuration. If it has no tokens, the generated token is valid, and
    /// is written to its file.
    fn from_config(config: &Config, parts: &AdminParts, address: SocketAddr) -> Self {
        let AdminParts { generated_token, sign_in, .. } = parts;
        let is_generated = config.tokens.is_empty();
        if is_generated {
            generated_token.write(address);
        }
        Self {
            is_exposed: config.is_exposed(),
            token_hint: match generated_token.path() {
                _ if !is_generated => gate::CONFIGURED_HINT.to_owned(),
                Ok(path) => format!("it is in the file `{}`", path.display()),
                Err(reason) => {
                    format!("the token generated at start is in no file: {reason}; set `admin.token`")
                }
            },
            tokens: if is_generated { generated_token.tokens().clone() } else { config.tokens.clone() },
            sign_in: Arc::clone(sign_in),
        }
    }
}

// === impl Config ===

impl Config {
    /// Creates the configuration of a listener at this address, with a generated token and without TLS.
    pub fn at_address(listen: SocketAddr) -> Self {
        Self { listen, tokens: TokenSet::default(), tls: None, token_folders: Vec::new() }
    }

    /// Whether other machines can reach the address.
    pub fn is_exposed(&self) -> bool {
        !self.listen.ip().to_canonical().is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Drain;
    use crate::{
        admin::listener::{PeerAddress, WRITE},
        front::WriteTimeoutStream,
        policy::{AccessPolicy, TaskQuotas},
        runtime::{Clock, ConnectionActivity, SystemClock},
        store::MemoryStore,
    };
    use std::net::{IpAddr, Ipv4Addr};
    use tokio::{
        io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    async fn send_request(address: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(address).await.expect("it listens");
        let request = format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    fn start(stopping: DrainWatch) -> AdminServer {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let ledger = ledger();
        serve(Config::at_address(listen), parts(ledger, stopping)).expect("a free port")
    }

    fn parts(ledger: Arc<TaskLedger>, stopping: DrainWatch) -> AdminParts {
        AdminParts {
            access: OperatorAccess::from_client_access(&AccessPolicy::default()),
            generated_token: Arc::new(GeneratedToken::new(Vec::new())),
            sign_in: Arc::new(BrowserSignIn::new(Arc::new(SystemClock::new()))),
            principal_names: PrincipalNames::default(),
            servers: RouteServers::new(),
            routes: Vec::new(),
            settings: "{}".into(),
            operators: Arc::new(OperatorTasks::new(Arc::clone(&ledger))),
            ledger,
            stopping,
            needs_servers: false,
            events: Arc::new(EventStreams::new("2026-07-28T10:30:00.000Z".to_owned())),
            history: Arc::default(),
            reloads: ReloadSender::disabled(),
        }
    }

    fn ledger() -> Arc<TaskLedger> {
        let (quotas, clock) = (TaskQuotas::default(), Arc::new(SystemClock::new()));
        TaskLedger::new(Arc::new(MemoryStore::default()), None, quotas, clock)
    }

    #[tokio::test]
    async fn a_stopping_proxy_is_live_but_not_ready() {
        let (drain, stopping) = Drain::new();
        let admin = start(stopping);
        assert!(send_request(admin.address, "GET /live").await.starts_with("HTTP/1.1 200 "));
        let ready = send_request(admin.address, "GET /ready").await;
        assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with(r#"{"status":"ready"}"#), "{ready}");
        assert_eq!(drain.stop(Duration::from_secs(600)).await, 0, "it is not waited for");
        let ready = send_request(admin.address, "GET /ready").await;
        assert!(ready.starts_with("HTTP/1.1 503 ") && ready.ends_with(r#"{"status":"stopping"}"#), "{ready}");
        assert!(send_request(admin.address, "GET /live").await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn an_unknown_path_or_method_is_refused_with_the_alternatives() {
        let (_drain, stopping) = Drain::new();
        let admin = start(stopping);
        let answer = send_request(admin.address, "GET /health").await;
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("/live, /ready"), "{answer}");
        let answer = send_request(admin.address, "POST /ready").await;
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD"), "{answer}");
        let answer = send_request(admin.address, "GET http://evil.example.com/live").await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("access.hosts"), "{answer}");
    }

    /// Reads one event of a stream, up to its end.
    async fn read_event(socket: &mut (impl AsyncRead + Unpin)) -> String {
        let mut received = String::new();
        while !received.ends_with("\n\n\r\n") {
            let mut some = [0; 4096];
            let length = socket.read(&mut some).await.expect("it goes on");
            assert!(length > 0, "it ends: {received}");
            received.push_str(std::str::from_utf8(&some[..length]).expect("text"));
        }
        received
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_events_client_is_disconnected_without_affecting_others() {
        const WATCH: &[u8] = b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let (_drain, stopping) = Drain::new();
        let parts = Arc::new(parts(ledger(), stopping));
        let gate = TokenGate::from_config(&Config::at_address(ANYWHERE), &parts, ANYWHERE);
        let shared = SwapCell::new(ServerState { parts: Arc::clone(&parts), gate, tls: None });
        let publishing = tokio::spawn(events::publish_periodically(move || Arc::clone(&parts)));
        let watch = |room: usize| {
            let (client, server) = tokio::io::duplex(room);
            let shared = shared.clone();
            let serving = async move {
                let activity = Arc::new(ConnectionActivity::new(SystemClock::new().now()));
                let paced = WriteTimeoutStream::new(server, WRITE);
                listener::serve_http(
                    (paced, PeerAddress(None)),
                    &shared,
                    &activity,
                    RequestScope::Everything,
                )
                .await;
            };
            (client, tokio::spawn(serving))
        };
        let (mut silent, of_silent) = watch(512);
        silent.write_all(WATCH).await.expect("it is read");
        let (mut reader, of_reader) = watch(1 << 20);
        reader.write_all(WATCH).await.expect("it is read");
        let clock = SystemClock::new();
        let began = clock.now();
        // The paused clock advances only when all tasks are idle.
        for _ in 0..30 {
            read_event(&mut reader).await;
        }
        assert!(clock.now() - began >= WRITE + Duration::from_secs(10));
        assert!(of_silent.is_finished() && !of_reader.is_finished());
        of_reader.abort();
        publishing.abort();
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
