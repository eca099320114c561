//! One HTTP request of a legacy client, passed on as it is.
//!
//! The client's session is the server's own, so the request goes on with its own headers but those
//! of the hop, and the answer comes back as it comes, a chunk at a time ([`RelayedBody`]).

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Method;
use std::{future::poll_fn, sync::Arc, time::Duration};
use tokio::time::sleep;

use super::{
    hop::{request_lines, strip_hop_headers, with_query},
    messages,
    relayed_body::{
        BodySource, CompletionSignal, DrainPolicy, ForwardAttempt, ForwardContext, RelayedBody,
        RequestTemplate, ResponseHeadFuture,
    },
    resume::{self, AttemptFailure, ReachedFlag},
    server::StreamableHttp,
};
use crate::{
    protocol::headers::SESSION_ID,
    upstream::{
        CallError, UpstreamTimeouts,
        forward::{self, HttpRequest, HttpResponse, RequestPurpose},
        http1::{ConnectionReuse, IncomingBody, TrafficClass},
    },
};

/// Sends a request on, and waits for the head of its answer.
pub(super) async fn forward(
    server: Arc<StreamableHttp>,
    request: HttpRequest,
) -> Result<HttpResponse, CallError> {
    if server.work.is_closing() {
        return Err(CallError::Closing);
    }
    let HttpRequest { principal: _, method, query, headers, body, purpose, calls, interest, timeout } =
        request;
    let session = headers.get(&SESSION_ID).cloned();
    let mut opening = None;
    let mut after = None;
    if let Some(session) = &session {
        match purpose {
            RequestPurpose::Listen | RequestPurpose::Resume => {
                opening = Some(server.stream_order.begin_opening(session))
            }
            RequestPurpose::Call => after = server.stream_order.stream_wait(session),
            RequestPurpose::Initialized
            | RequestPurpose::Idempotent
            | RequestPurpose::NonIdempotent
            | RequestPurpose::Notify => {}
        }
    }
    let mut head = request_lines(&server.host, &server.via.0, &headers, &server.config.load().headers);
    head.extend_from_slice(&server.configured_lines());
    let way = Arc::new(RequestTemplate {
        path: query.map(|query| with_query(&server.path, Some(&query)).into_owned()),
        lines: head,
        in_session: session.is_some(),
    });
    drop(headers);
    let due = purpose
        .deadline(&server.config.load().timeouts, timeout)
        .map(|(limit, lost)| (Box::pin(sleep(limit)), lost));
    let mut rest = ForwardContext {
        server: server.clone(),
        drain: purpose.drain_policy(),
        interest,
        deadline: due,
        template: (!calls.is_empty()).then(|| way.clone()),
        is_events: false,
        completion: CompletionSignal::OffStream,
        calls,
    };
    let (response, mut rest) = match purpose {
        RequestPurpose::Resume => {
            let response = tokio::select! {
                biased;
                response = get_with_retries(&server, &way) => response,
                lost = poll_fn(|cx| rest.poll_deadline(cx)) => Err(lost),
            };
            (response?, rest)
        }
        _ => send_request(&method, &way, body, rest, (purpose, after)).await?,
    };
    drop(opening);
    if !matches!(purpose, RequestPurpose::Call | RequestPurpose::Idempotent | RequestPurpose::NonIdempotent) {
        rest.deadline = None;
        rest.relax_drain();
    }
    if let (RequestPurpose::Initialized, Some(session)) = (purpose, session) {
        server.stream_order.handshake_completed(&session, |expiry| server.work.spawn(expiry));
    }
    let (head, body) = response.into_parts();
    rest.completion = CompletionSignal::of(&head);
    let answers = matches!(
        purpose,
        RequestPurpose::Call
            | RequestPurpose::Idempotent
            | RequestPurpose::NonIdempotent
            | RequestPurpose::Resume
    );
    if answers && messages::is_events(&head.headers) {
        rest.template = Some(way);
        rest.is_events = true;
    }
    let limit = rest.server.config.load().limits.result_bytes;
    let body = RelayedBody { source: BodySource::Body(body), may_have_mark: false, context: rest };
    let (status, headers) = (head.status, strip_hop_headers(head.headers));
    Ok(HttpResponse { status, headers, body: forward::HttpResponseBody::Relayed(body), limit })
}

/// Sends a request, behind what it has to come `after`, and waits for the head of its answer. What may be sent twice
/// is, where its connection breaks: a server closes idle ones, and the request may be on its way just then.
async fn send_request(
    method: &Method,
    way: &Arc<RequestTemplate>,
    body: Bytes,
    rest: ForwardContext,
    (purpose, after): (RequestPurpose, Option<BoxFuture<'static, ()>>),
) -> Result<(http::Response<IncomingBody>, ForwardContext), CallError> {
    let twice = purpose.is_idempotent();
    let reuse = if twice { ConnectionReuse::Any } else { ConnectionReuse::Proven };
    let again = twice.then(|| body.clone());
    let traffic = if purpose == RequestPurpose::Notify { TrafficClass::Control } else { TrafficClass::Call };
    let asked = match after {
        None => ForwardAttempt::Sent(way.send(&rest.server, method, body, reuse, traffic)),
        Some(wait) => {
            let (server, way, method) = (rest.server.clone(), way.clone(), method.clone());
            let send = move || way.send(&server, &method, body, reuse, traffic);
            ForwardAttempt::Queued { wait, send: Box::new(send) }
        }
    };
    let rest = match (ResponseHeadFuture { attempt: Some(asked), context: Some(rest) }.await, again) {
        (Err((CallError::Broken(_), rest)), Some(body)) => {
            // The next of those whose last answer was a 202 may be closed as well.
            let answering = way.send(&rest.server, method, body, ConnectionReuse::Proven, traffic);
            ResponseHeadFuture { attempt: Some(ForwardAttempt::Sent(answering)), context: Some(rest) }.await
        }
        (answer, _) => answer,
    };
    rest.map_err(|(lost, _)| lost)
}

/// Asks for the rest of an answer, more than once where the server cannot be reached. What it is refused
/// with at last is the answer.
async fn get_with_retries(
    server: &StreamableHttp,
    way: &RequestTemplate,
) -> Result<http::Response<IncomingBody>, CallError> {
    let attempt = |reached: ReachedFlag| async move {
        match reached.track(way.get(server)).await {
            Ok(response) if resume::is_transient(response.status()) => {
                Err(AttemptFailure::Transient(Ok(response)))
            }
            Ok(response) => Ok(response),
            Err(lost) => Err(AttemptFailure::Transient(Err(lost))),
        }
    };
    resume::retry_resume(None, attempt).await.or_else(|refused| refused)
}

// === impl Purpose ===

impl RequestPurpose {
    /// How long it may take, and what is to be said then; `Missing` for as long as the client likes.
    fn deadline(self, limits: &UpstreamTimeouts, of_call: Option<Duration>) -> Option<(Duration, CallError)> {
        let call = of_call.unwrap_or(limits.call);
        match self {
            Self::Listen => None,
            Self::Call | Self::Idempotent | Self::NonIdempotent | Self::Resume => {
                Some((call, CallError::CallTimeout(call)))
            }
            Self::Initialized | Self::Notify => {
                Some((limits.first_byte, CallError::FirstByteTimeout(limits.first_byte)))
            }
        }
    }

    fn drain_policy(self) -> DrainPolicy {
        match self {
            Self::Listen | Self::Resume => DrainPolicy::Never,
            // Also what is only told must reach the server.
            Self::Initialized | Self::Call | Self::Idempotent | Self::NonIdempotent | Self::Notify => {
                DrainPolicy::Always
            }
        }
    }

    /// Whether it may be sent twice.
    fn is_idempotent(self) -> bool {
        match self {
            Self::Listen | Self::Resume | Self::Initialized | Self::Idempotent => true,
            Self::Call | Self::NonIdempotent | Self::Notify => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dialect::Principal,
        runtime::Network,
        upstream::{ClientSession, Config, ServerUrl, background::BackgroundTasks},
    };
    use futures_util::FutureExt;
    use http::{HeaderMap, HeaderValue};
    use tokio::{
        io::AsyncReadExt,
        net::TcpListener,
        time::{Duration, timeout},
    };

    #[tokio::test]
    async fn a_call_is_sent_although_its_client_leaves_while_it_waits_for_a_stream() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("it is bound"));
        let url = ServerUrl::from(url.parse::<http::Uri>().expect("a URL"));
        let work = BackgroundTasks::new().expect("there is a runtime");
        let http =
            StreamableHttp::new("", &url, Config::default(), work, &Network::System).expect("a server");
        let http = Arc::new(http);
        let session = HeaderValue::from_static("s");
        let opening = http.stream_order.begin_opening(&session);
        let headers = HeaderMap::from_iter([(SESSION_ID.clone(), session)]);
        let session = ClientSession { principal: Principal::ANONYMOUS, query: None, headers };
        let call = session.request(Method::POST, Bytes::from_static(b"{}"), RequestPurpose::Call);
        let mut waiting = Box::pin(forward(http, call));
        assert!((&mut waiting).now_or_never().is_none(), "it waits");
        drop(waiting);
        drop(opening);
        let arrived = async {
            let mut read = [0; 5];
            listener.accept().await?.0.read_exact(&mut read).await?;
            std::io::Result::Ok(read)
        };
        let arrived = timeout(Duration::from_secs(10), arrived).await.expect("it is sent");
        assert_eq!(&arrived.expect("it is read"), b"POST ");
    }
}
