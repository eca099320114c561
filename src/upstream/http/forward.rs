//! Forwarding of one HTTP request of a legacy client.
//!
//! The client's session is the server's own, so the request keeps its headers except the hop-by-hop ones, and
//! the response is relayed chunk by chunk ([`RelayedBody`]).

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

/// Forwards a request, and waits for the head of its response.
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
    let mut opening_guard = None;
    let mut stream_wait = None;
    if let Some(session) = &session {
        match purpose {
            RequestPurpose::Listen | RequestPurpose::Resume => {
                opening_guard = Some(server.stream_order.begin_opening(session))
            }
            RequestPurpose::Call => stream_wait = server.stream_order.stream_wait(session),
            RequestPurpose::Initialized
            | RequestPurpose::Idempotent
            | RequestPurpose::NonIdempotent
            | RequestPurpose::Notify => {}
        }
    }
    let mut head = request_lines(&server.host, &server.via.0, &headers, &server.config.load().headers);
    head.extend_from_slice(&server.configured_lines());
    let template = Arc::new(RequestTemplate {
        path: query.map(|query| with_query(&server.path, Some(&query)).into_owned()),
        lines: head,
        in_session: session.is_some(),
    });
    drop(headers);
    let deadline = purpose
        .deadline(&server.config.load().timeouts, timeout)
        .map(|(limit, error)| (Box::pin(sleep(limit)), error));
    let mut context = ForwardContext {
        server: server.clone(),
        drain_policy: purpose.drain_policy(),
        interest,
        deadline,
        template: (!calls.is_empty()).then(|| template.clone()),
        is_events: false,
        completion: CompletionSignal::OffStream,
        calls,
    };
    let (response, mut context) = match purpose {
        RequestPurpose::Resume => {
            let response = tokio::select! {
                biased;
                response = get_with_retries(&server, &template) => response,
                lost = poll_fn(|cx| context.poll_deadline(cx)) => Err(lost),
            };
            (response?, context)
        }
        _ => send_request(&method, &template, body, context, (purpose, stream_wait)).await?,
    };
    drop(opening_guard);
    if !matches!(purpose, RequestPurpose::Call | RequestPurpose::Idempotent | RequestPurpose::NonIdempotent) {
        context.deadline = None;
        context.relax_drain();
    }
    if let (RequestPurpose::Initialized, Some(session)) = (purpose, session) {
        server.stream_order.handshake_completed(&session, |expiry| server.work.spawn(expiry));
    }
    let (head, body) = response.into_parts();
    context.completion = CompletionSignal::from_head(&head);
    let has_responses = matches!(
        purpose,
        RequestPurpose::Call
            | RequestPurpose::Idempotent
            | RequestPurpose::NonIdempotent
            | RequestPurpose::Resume
    );
    if has_responses && messages::is_events(&head.headers) {
        context.template = Some(template);
        context.is_events = true;
    }
    let limit = context.server.config.load().limits.result_bytes;
    let body = RelayedBody { source: BodySource::Body(body), may_have_bom: false, context };
    let (status, headers) = (head.status, strip_hop_headers(head.headers));
    Ok(HttpResponse { status, headers, body: forward::HttpResponseBody::Relayed(body), limit })
}

/// Sends a request, after the wait for the client's GET stream if there is one, and waits for the head of its
/// response. An idempotent request is sent again if its connection breaks: a server closes idle connections,
/// and the request may be in flight at that moment.
async fn send_request(
    method: &Method,
    template: &Arc<RequestTemplate>,
    body: Bytes,
    context: ForwardContext,
    (purpose, stream_wait): (RequestPurpose, Option<BoxFuture<'static, ()>>),
) -> Result<(http::Response<IncomingBody>, ForwardContext), CallError> {
    let is_idempotent = purpose.is_idempotent();
    let reuse = if is_idempotent { ConnectionReuse::Any } else { ConnectionReuse::Proven };
    let resend_body = is_idempotent.then(|| body.clone());
    let traffic = if purpose == RequestPurpose::Notify { TrafficClass::Control } else { TrafficClass::Call };
    let attempt = match stream_wait {
        None => ForwardAttempt::Sent(template.send(&context.server, method, body, reuse, traffic)),
        Some(wait) => {
            let (server, template, method) = (context.server.clone(), template.clone(), method.clone());
            let send = move || template.send(&server, &method, body, reuse, traffic);
            ForwardAttempt::Queued { wait, send: Box::new(send) }
        }
    };
    let first = ResponseHeadFuture { attempt: Some(attempt), context: Some(context) };
    let outcome = match (first.await, resend_body) {
        (Err((CallError::Broken(_), context)), Some(body)) => {
            // The next connection whose last response was a 202 may be closed as well.
            let pending = template.send(&context.server, method, body, ConnectionReuse::Proven, traffic);
            let attempt = Some(ForwardAttempt::Sent(pending));
            ResponseHeadFuture { attempt, context: Some(context) }.await
        }
        (result, _) => result,
    };
    outcome.map_err(|(error, _)| error)
}

/// Requests the remainder of a response by GET, repeatedly while the server is unreachable or busy. The last
/// refusal is the response.
async fn get_with_retries(
    server: &StreamableHttp,
    template: &RequestTemplate,
) -> Result<http::Response<IncomingBody>, CallError> {
    let attempt = |reached: ReachedFlag| async move {
        match reached.track(template.get(server)).await {
            Ok(response) if resume::is_transient(response.status()) => {
                Err(AttemptFailure::Transient(Ok(response)))
            }
            Ok(response) => Ok(response),
            Err(error) => Err(AttemptFailure::Transient(Err(error))),
        }
    };
    resume::retry_resume(None, attempt).await.or_else(|last_failure| last_failure)
}

// === impl RequestPurpose ===

impl RequestPurpose {
    /// Time limit of the request, and the error at the limit; `None` without a limit. `call_limit` is the
    /// request's own limit for calls.
    fn deadline(
        self,
        limits: &UpstreamTimeouts,
        call_limit: Option<Duration>,
    ) -> Option<(Duration, CallError)> {
        let limit = call_limit.unwrap_or(limits.call);
        match self {
            Self::Listen => None,
            Self::Call | Self::Idempotent | Self::NonIdempotent | Self::Resume => {
                Some((limit, CallError::CallTimeout(limit)))
            }
            Self::Initialized | Self::Notify => {
                Some((limits.first_byte, CallError::FirstByteTimeout(limits.first_byte)))
            }
        }
    }

    fn drain_policy(self) -> DrainPolicy {
        match self {
            Self::Listen | Self::Resume => DrainPolicy::Never,
            // Notifications must reach the server as well.
            Self::Initialized | Self::Call | Self::Idempotent | Self::NonIdempotent | Self::Notify => {
                DrainPolicy::Always
            }
        }
    }

    /// Whether the request may be sent twice.
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
    async fn a_call_is_sent_although_its_client_disconnects_while_it_waits_for_a_stream() {
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
