//! One server over HTTP: its configuration, requests outside sessions, and error responses.

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, uri::PathAndQuery};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use std::{sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::timeout};

use super::{hop, session::OpenSessionIds, stream_before_call::StreamOrder, via::Via};
use crate::{
    dialect::Credentials,
    protocol::{ErrorObject, Frame, Kind},
    runtime::{Network, SwapCell, resize_semaphore},
    upstream::{
        ApplyReload, CallError, Config, HttpOrigin, OriginRequest, OriginResponse, ServerUrl,
        UpstreamSetupError,
        background::BackgroundTasks,
        http1::{
            self, ConnectionReuse, HttpClient, IncomingBody, PendingResponse, SendOptions, TrafficClass,
        },
    },
};

/// Streamable HTTP transport of one server.
pub struct StreamableHttp {
    /// Route of the server.
    pub(super) route: Arc<str>,
    /// URL for display.
    pub(super) url: ServerUrl,
    pub(super) config: SwapCell<Config>,
    pub(super) client: HttpClient,
    /// Path of the MCP endpoint, with its query.
    pub(super) path: String,
    /// `Host` header, from the URL.
    pub(super) host: HeaderValue,
    /// `Via` entry of requests to this server.
    pub(super) via: Via,
    /// Permits for responses that are read to their end after their client disconnected.
    pub(super) disconnected_permits: Arc<Semaphore>,
    /// Order of the GET streams of legacy clients and their calls.
    pub(super) stream_order: StreamOrder,
    /// Ids of the proxy's open sessions.
    pub(super) open_ids: OpenSessionIds,
    pub(super) work: BackgroundTasks,
}

/// `User-Agent` header line of the proxy, with its line end.
const USER_AGENT: &str = concat!("user-agent: deferral/", env!("CARGO_PKG_VERSION"), "\r\n");
/// Limit of the body of an error response, in bytes.
pub(in crate::upstream) const MAX_ERROR_BODY_BYTES: usize = 64 << 10;
/// Time limit of reading the body of an error response.
pub(in crate::upstream) const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a server's text that is repeated in an error, in characters.
const MAX_DETAIL_CHARS: usize = 200;
/// Limit of a response body of the server's origin, such as that of
/// [`HttpOrigin::fetch`], in bytes.
const MAX_DOCUMENT_BYTES: usize = 1 << 20;

// === impl StreamableHttp ===

impl StreamableHttp {
    /// Creates the transport of a route's server. Connects later, with the first request.
    ///
    /// # Errors
    /// [`UpstreamSetupError`] if the URL is not usable.
    pub(super) fn new(
        route: &str,
        server_url: &ServerUrl,
        config: Config,
        work: BackgroundTasks,
        net: &Network,
    ) -> Result<Self, UpstreamSetupError> {
        let url = server_url.uri();
        let client = HttpClient::new(server_url, &config, net)?;
        let path = url.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let host = url.authority().map(|authority| {
            let text = authority.as_str();
            text.rsplit_once('@').map_or(text, |(_, host)| host)
        });
        let host = host
            .and_then(|host| HeaderValue::from_str(host).ok())
            .ok_or_else(|| UpstreamSetupError::NoHost(url.clone()))?;
        let disconnected_permits =
            Arc::new(Semaphore::new(config.limits.departed.min(Semaphore::MAX_PERMITS)));
        Ok(Self {
            route: route.into(),
            url: server_url.clone(),
            config: config.into(),
            client,
            path,
            host,
            via: Via::new(),
            disconnected_permits,
            stream_order: StreamOrder::default(),
            open_ids: OpenSessionIds::default(),
            work,
        })
    }

    /// Headers of every request of a caller, to which [`StreamableHttp::configured_lines`] and
    /// [`StreamableHttp::user_agent_line`] are added.
    pub(super) fn caller_headers(&self, credentials: &Credentials) -> HeaderMap {
        let mut headers = credentials.headers().clone();
        headers.insert(header::HOST, self.host.clone());
        // After the entries of the client's requests (RFC 9110, 7.6.3).
        headers.append(header::VIA, self.via.0.clone());
        headers.insert(header::ACCEPT_ENCODING, hop::ACCEPT_IDENTITY);
        // Configured headers are added to each request, with their current values.
        for name in self.config.load().headers.keys() {
            headers.remove(name);
        }
        headers
    }

    /// `User-Agent` header line of the proxy; empty if these headers or the configuration have one.
    pub(super) fn user_agent_line(&self, headers: &HeaderMap) -> &'static [u8] {
        let is_set = headers.contains_key(header::USER_AGENT)
            || self.config.load().headers.contains_key(header::USER_AGENT);
        if is_set { b"" } else { USER_AGENT.as_bytes() }
    }

    /// Serialized headers of the configuration, with their current values.
    pub(super) fn configured_lines(&self) -> Vec<u8> {
        http1::header_lines(&self.config.load().headers)
    }

    /// Prepares a reload; the returned closure applies it.
    ///
    /// # Errors
    /// [`UpstreamSetupError`] if TLS cannot be set up.
    pub(super) fn prepare_reload(
        self: &Arc<Self>,
        config: &Config,
    ) -> Result<ApplyReload, UpstreamSetupError> {
        let connector = self.client.prepare_reload(config)?;
        let (transport, config) = (Arc::clone(self), config.clone());
        Ok(Box::new(move || {
            resize_semaphore(
                &transport.disconnected_permits,
                transport.config.load().limits.departed,
                config.limits.departed,
            );
            transport.client.apply(connector);
            transport.config.set(config);
        }))
    }

    /// Headers of every POST of a caller.
    pub(super) fn post_headers(&self, credentials: &Credentials) -> HeaderMap {
        let mut headers = self.caller_headers(credentials);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers
    }

    /// Waits for the response head, at most for the first-byte timeout.
    pub(super) async fn await_head(
        &self,
        pending: PendingResponse,
    ) -> Result<http::Response<IncomingBody>, CallError> {
        let limit = self.config.load().timeouts.first_byte;
        timeout(limit, pending).await.unwrap_or(Err(CallError::FirstByteTimeout(limit)))
    }

    /// Reads the remainder of a response and drops it, so that its connection can be reused; in the
    /// background if the remainder has not arrived yet, which is rare.
    pub(super) fn drain_later(&self, mut remainder: IncomingBody) {
        if remainder.is_end_stream() {
            return;
        }
        match remainder.frame().now_or_never() {
            Some(None | Some(Err(_))) => {}
            Some(Some(Ok(_))) | None => self.work.spawn(drain(remainder)),
        }
    }

    /// Sends a request to the server's origin, and collects the response. Only a path is sent, whatever is
    /// requested.
    async fn request_path(
        &self,
        method: Method,
        path: &str,
        lines: Vec<u8>,
        body: Bytes,
        reuse: ConnectionReuse,
    ) -> Result<OriginResponse, CallError> {
        let path: PathAndQuery =
            path.parse().map_err(|error| CallError::Invalid(format!("{path:?} is not a path: {error}")))?;
        let limit = self.config.load().timeouts.first_byte;
        let response = async {
            let options = SendOptions { reuse, traffic: TrafficClass::Call, cookies: None };
            let lines: [&[u8]; 2] = [&lines, &self.configured_lines()];
            let (head, body) =
                self.client.send(&method, path.as_str(), lines, body, options).await?.into_parts();
            let body = collect_body(body, MAX_DOCUMENT_BYTES).await?;
            Ok(OriginResponse { status: head.status, headers: head.headers, body })
        };
        timeout(limit, response).await.unwrap_or(Err(CallError::FirstByteTimeout(limit)))
    }
}

impl HttpOrigin for StreamableHttp {
    fn url(&self) -> &ServerUrl {
        &self.url
    }

    fn is_own_hop(&self, headers: &HeaderMap) -> bool {
        self.via.is_in(headers)
    }

    fn passes_authorization(&self) -> bool {
        !self.config.load().headers.contains_key(header::AUTHORIZATION)
    }

    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>> {
        let headers = self.caller_headers(credentials);
        let mut lines = http1::header_lines(&headers);
        lines.extend_from_slice(self.user_agent_line(&headers));
        self.request_path(Method::GET, path, lines, Bytes::new(), ConnectionReuse::Any).boxed()
    }

    fn request(&self, request: OriginRequest) -> BoxFuture<'_, Result<OriginResponse, CallError>> {
        let OriginRequest { method, path, headers, body } = request;
        let lines = hop::request_lines(&self.host, &self.via.0, &headers, &self.config.load().headers);
        async move {
            let reuse = ConnectionReuse::Proven;
            let mut response = self.request_path(method, &path, lines, body, reuse).await?;
            response.headers = hop::strip_hop_headers(response.headers);
            Ok(response)
        }
        .boxed()
    }
}

/// Collects a response body of at most `limit` bytes.
///
/// # Errors
/// [`CallError::TooLarge`] and [`CallError::Broken`].
pub(super) async fn collect_body(body: IncomingBody, limit: usize) -> Result<Bytes, CallError> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(CallError::TooLarge { limit }),
        Err(error) => Err(CallError::Broken(error.to_string())),
    }
}

/// Body of an error response; empty if it does not arrive in time.
pub(super) async fn error_body(body: IncomingBody) -> Bytes {
    match timeout(ERROR_BODY_TIMEOUT, collect_body(body, MAX_ERROR_BODY_BYTES)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) | Err(_) => Bytes::new(),
    }
}

/// Converts an HTTP error response without a JSON-RPC message to an error. 401, and 403 with a challenge, are
/// about credentials (RFC 9110, 11.6.1; RFC 6750, 3.1). A 403 without a challenge is not, and its text is the
/// only reason: a server that does not accept the `Host` answers so. The error names the target of a redirect
/// that was not followed.
pub(in crate::upstream) fn status_error(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> CallError {
    let challenge = headers.get(header::WWW_AUTHENTICATE);
    match (status, challenge) {
        (StatusCode::UNAUTHORIZED, challenge) => {
            return CallError::Unauthorized { status, challenge: challenge.cloned() };
        }
        (StatusCode::FORBIDDEN, Some(challenge)) => {
            return CallError::Unauthorized { status, challenge: Some(challenge.clone()) };
        }
        (StatusCode::FORBIDDEN, None) => {
            let error = Frame::parse(body.clone()).ok().and_then(|frame| match frame.kind() {
                Kind::Failure { error, .. } => Some(ErrorObject::from_raw(Bytes::copy_from_slice(error))),
                Kind::Request { .. } | Kind::Notification { .. } | Kind::Success { .. } => None,
            });
            let text = error.as_ref().map(|error| shorten(&error.message()));
            return CallError::Forbidden { detail: text.unwrap_or_else(|| error_text(status, body)), error };
        }
        _ => {}
    }
    let target = headers.get(header::LOCATION).and_then(|target| target.to_str().ok());
    let detail = match target {
        Some(target) if status.is_redirection() => {
            format!(
                "it redirects to {target}, which is another server or another method; name it in upstream.url"
            )
        }
        _ if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            "the forward proxy requires a user and a password; write them into its URL".to_owned()
        }
        Some(_) | None => error_text(status, body),
    };
    CallError::Status { status, detail, retry_after: retry_after(headers) }
}

/// Value of the `Retry-After` header, if there is one.
pub(in crate::upstream) fn retry_after(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(header::RETRY_AFTER)?.to_str().ok()?.to_owned())
}

/// Returns the text of an error body, shortened, or the reason phrase of its status if the body is not text.
fn error_text(status: StatusCode, body: &Bytes) -> String {
    match std::str::from_utf8(body).map(str::trim) {
        Ok(text) if !text.is_empty() => shorten(text),
        Ok(_) | Err(_) => status.canonical_reason().unwrap_or("no reason given").to_owned(),
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(MAX_DETAIL_CHARS).collect()
}

/// Reads the remainder of a response, so that its connection can be reused. Limited to a second, because a
/// server may leave a stream open.
async fn drain(mut body: IncomingBody) {
    let _ = timeout(Duration::from_secs(1), async { while let Some(Ok(_)) = body.frame().await {} }).await;
}
