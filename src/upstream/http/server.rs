//! One server over HTTP: how it is reached, and what its errors say.

use bytes::Bytes;
use futures_util::FutureExt;
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
        ApplyReload, CallError, Config, OriginRequest, OriginResponse, ServerUrl, UpstreamSetupError,
        background::BackgroundTasks,
        http1::{
            self, ConnectionReuse, HttpClient, IncomingBody, PendingResponse, SendOptions, TrafficClass,
        },
    },
};

/// One server over HTTP.
pub struct StreamableHttp {
    /// The route it is for.
    pub(super) route: Arc<str>,
    /// As it is shown to people.
    pub(super) url: ServerUrl,
    pub(super) config: SwapCell<Config>,
    pub(super) client: HttpClient,
    /// The path of the MCP endpoint, its query included.
    pub(super) path: String,
    /// `Host`, as the URL has it.
    pub(super) host: HeaderValue,
    /// What our requests say of having passed here.
    pub(super) via: Via,
    /// Places for answers that are read on after their client left.
    pub(super) departed: Arc<Semaphore>,
    /// GET streams of legacy clients that are about to be opened.
    pub(super) stream_order: StreamOrder,
    /// The ids of the sessions of ours.
    pub(super) open_ids: OpenSessionIds,
    pub(super) work: BackgroundTasks,
}

/// Who we say we are.
const USER_AGENT: &str = concat!("user-agent: deferral/", env!("CARGO_PKG_VERSION"), "\r\n");
/// How much of an error's body is read.
pub(in crate::upstream) const ERROR_BODY: usize = 64 << 10;
/// How long an error's body is waited for.
pub(in crate::upstream) const ERROR_BODY_TIME: Duration = Duration::from_secs(10);
/// How much of a text is repeated in an error.
const DETAIL_CHARS: usize = 200;
/// The largest document that [`Upstream::fetch`](crate::upstream::Upstream::fetch) takes, in bytes.
const DOCUMENT: usize = 1 << 20;

// === impl Http ===

impl StreamableHttp {
    /// # Errors
    /// [`UpstreamSetupError`] where the URL cannot be spoken to.
    pub(super) fn new(
        route: &str,
        shown: &ServerUrl,
        config: Config,
        work: BackgroundTasks,
        net: &Network,
    ) -> Result<Self, UpstreamSetupError> {
        let url = shown.uri();
        let client = HttpClient::new(shown, &config, net)?;
        let path = url.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let host = url.authority().map(|authority| {
            let whole = authority.as_str();
            whole.rsplit_once('@').map_or(whole, |(_, host)| host)
        });
        let host = host
            .and_then(|host| HeaderValue::from_str(host).ok())
            .ok_or_else(|| UpstreamSetupError::NoHost(url.clone()))?;
        let departed = Arc::new(Semaphore::new(config.limits.departed.min(Semaphore::MAX_PERMITS)));
        Ok(Self {
            route: route.into(),
            url: shown.clone(),
            config: config.into(),
            client,
            path,
            host,
            via: Via::new(),
            departed,
            stream_order: StreamOrder::default(),
            open_ids: OpenSessionIds::default(),
            work,
        })
    }

    /// What every request of a caller carries, beside [`StreamableHttp::configured_lines`] and [`StreamableHttp::user_agent_line`].
    pub(super) fn headers(&self, credentials: &Credentials) -> HeaderMap {
        let mut headers = credentials.headers().clone();
        headers.insert(header::HOST, self.host.clone());
        // Behind those that the client's requests have passed (RFC 9110, 7.6.3).
        headers.append(header::VIA, self.via.0.clone());
        headers.insert(header::ACCEPT_ENCODING, hop::NO_CODING);
        // Ours stand in their place, with each request.
        for name in self.config.load().headers.keys() {
            headers.remove(name);
        }
        headers
    }

    /// Our `User-Agent` as a header line, where neither these headers nor the configuration have one.
    pub(super) fn user_agent_line(&self, headers: &HeaderMap) -> &'static [u8] {
        let is_said = headers.contains_key(header::USER_AGENT)
            || self.config.load().headers.contains_key(header::USER_AGENT);
        if is_said { b"" } else { USER_AGENT.as_bytes() }
    }

    /// The header lines that are configured: as they are now, behind what a session always says.
    pub(super) fn configured_lines(&self) -> Vec<u8> {
        http1::header_lines(&self.config.load().headers)
    }

    /// Gets ready to speak to the server in another way.
    ///
    /// # Errors
    /// [`UpstreamSetupError`] where TLS cannot be set up.
    pub(super) fn prepare_reload(
        self: &Arc<Self>,
        config: &Config,
    ) -> Result<ApplyReload, UpstreamSetupError> {
        let way = self.client.prepare_reload(config)?;
        let (this, config) = (Arc::clone(self), config.clone());
        Ok(Box::new(move || {
            resize_semaphore(&this.departed, this.config.load().limits.departed, config.limits.departed);
            this.client.apply(way);
            this.config.set(config);
        }))
    }

    /// What every message of a caller carries.
    pub(super) fn post_headers(&self, credentials: &Credentials) -> HeaderMap {
        let mut headers = self.headers(credentials);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers
    }

    /// Waits for an answer that is not worth more than its status. Bounded by the first-byte timeout.
    pub(super) async fn await_head(
        &self,
        answering: PendingResponse,
    ) -> Result<http::Response<IncomingBody>, CallError> {
        let limit = self.config.load().timeouts.first_byte;
        timeout(limit, answering).await.unwrap_or(Err(CallError::FirstByteTimeout(limit)))
    }

    /// Reads an answer's rest, so that its connection can serve the next request; in the background
    /// where it is not there yet. Mostly it is.
    pub(super) fn drain_later(&self, mut rest: IncomingBody) {
        if rest.is_end_stream() {
            return;
        }
        match rest.frame().now_or_never() {
            Some(None | Some(Err(_))) => {}
            Some(Some(Ok(_))) | None => self.work.spawn(drain(rest)),
        }
    }

    pub(super) async fn fetch_document(
        &self,
        path: &str,
        credentials: &Credentials,
    ) -> Result<OriginResponse, CallError> {
        // Only a path goes out, whatever is asked for.
        let path: PathAndQuery =
            path.parse().map_err(|error| CallError::Invalid(format!("{path:?} is not a path: {error}")))?;
        let limit = self.config.load().timeouts.first_byte;
        let headers = self.headers(credentials);
        let mut lines = http1::header_lines(&headers);
        lines.extend_from_slice(self.user_agent_line(&headers));
        let asked = async {
            let (client, path, nothing) = (&self.client, path.as_str(), Bytes::new());
            let answer = client.send(
                &Method::GET,
                path,
                [&lines, &self.configured_lines()],
                nothing,
                SendOptions { reuse: ConnectionReuse::Any, traffic: TrafficClass::Call, cookies: None },
            );
            let (head, body) = answer.await?.into_parts();
            let body = collect_body(body, DOCUMENT).await?;
            Ok(OriginResponse { status: head.status, headers: head.headers, body })
        };
        timeout(limit, asked).await.unwrap_or(Err(CallError::FirstByteTimeout(limit)))
    }
}

impl StreamableHttp {
    pub(super) async fn send_to_origin(&self, request: OriginRequest) -> Result<OriginResponse, CallError> {
        let OriginRequest { method, path, headers, body } = request;
        let path: PathAndQuery =
            path.parse().map_err(|error| CallError::Invalid(format!("{path:?} is not a path: {error}")))?;
        let config = self.config.load();
        let (limit, lines) = (
            config.timeouts.first_byte,
            hop::request_lines(&self.host, &self.via.0, &headers, &config.headers),
        );
        drop(config);
        let asked = async {
            let (lines, ours) = (&lines[..], self.configured_lines());
            let options =
                SendOptions { reuse: ConnectionReuse::Proven, traffic: TrafficClass::Call, cookies: None };
            let answer = self.client.send(&method, path.as_str(), [lines, &ours], body, options);
            let (head, body) = answer.await?.into_parts();
            let body = collect_body(body, DOCUMENT).await?;
            Ok(OriginResponse { status: head.status, headers: hop::strip_hop_headers(head.headers), body })
        };
        timeout(limit, asked).await.unwrap_or(Err(CallError::FirstByteTimeout(limit)))
    }
}

/// A whole body of at most `limit` bytes.
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

/// The body of an answer that reports an error; empty where it does not come in time.
pub(super) async fn error_body(body: IncomingBody) -> Bytes {
    match timeout(ERROR_BODY_TIME, collect_body(body, ERROR_BODY)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) | Err(_) => Bytes::new(),
    }
}

/// What an HTTP error that is no JSON-RPC message says. 401, and 403 with a challenge, are about
/// credentials (RFC 9110, 11.6.1; RFC 6750, 3.1); without one a 403 is not, and its words are all there
/// is: a server that does not know the name it is called by says so like that. The target of a redirect
/// that was not followed is named.
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
            let words = error.as_ref().map(|error| shorten(&error.message()));
            return CallError::Forbidden { detail: words.unwrap_or_else(|| error_text(status, body)), error };
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
            "the proxy on the way wants a user and a password; write them into its URL".to_owned()
        }
        Some(_) | None => error_text(status, body),
    };
    CallError::Status { status, detail, retry_after: retry_after(headers) }
}

/// When the server wants the request again.
pub(in crate::upstream) fn retry_after(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(header::RETRY_AFTER)?.to_str().ok()?.to_owned())
}

/// What an error's body says, or else its status.
fn error_text(status: StatusCode, body: &Bytes) -> String {
    match std::str::from_utf8(body).map(str::trim) {
        Ok(text) if !text.is_empty() => shorten(text),
        Ok(_) | Err(_) => status.canonical_reason().unwrap_or("no reason given").to_owned(),
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(DETAIL_CHARS).collect()
}

/// Reads an answer's rest in the background, so that its connection can serve the next request.
/// Gives up soon: a server may leave a stream open for no reason.
async fn drain(mut body: IncomingBody) {
    let _ = timeout(Duration::from_secs(1), async { while let Some(Ok(_)) = body.frame().await {} }).await;
}
