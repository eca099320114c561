//! One HTTP request of a legacy client, passed on as it is.
//!
//! The client's session is the server's own, so the request goes on with its own headers but those
//! of the hop, and the answer comes back as it comes, a chunk at a time ([`Passing`]).

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Method;
use std::{future::poll_fn, sync::Arc, time::Duration};
use tokio::time::sleep;

use super::{
    hop::{lines, with_query, without_hop},
    messages,
    passing::{Asked, Asking, Ending, Passing, Rest, Source, Wanted, Way},
    resume::{self, Reached, Refused},
    server::Http,
};
use crate::{
    protocol::headers::SESSION_ID,
    upstream::{
        CallError, Timeouts,
        forward::{self, Forward, Forwarded, Purpose},
        http1::{Incoming, Reuse, Traffic},
    },
};

/// Sends a request on, and waits for the head of its answer.
pub(super) async fn forward(server: Arc<Http>, request: Forward) -> Result<Forwarded, CallError> {
    if server.work.is_closing() {
        return Err(CallError::Closing);
    }
    let Forward { principal: _, method, query, headers, body, purpose, calls, interest, timeout } = request;
    let session = headers.get(&SESSION_ID).cloned();
    let mut opening = None;
    let mut after = None;
    if let Some(session) = &session {
        match purpose {
            Purpose::Listen | Purpose::Resume => opening = Some(server.order.opens(session)),
            Purpose::Call => after = server.order.awaited(session),
            Purpose::Begin | Purpose::Ask | Purpose::Once | Purpose::Tell => {}
        }
    }
    let mut head = lines(&server.host, &server.via.0, &headers, &server.config.now().headers);
    head.extend_from_slice(&server.ours());
    let way = Arc::new(Way {
        path: query.map(|query| with_query(&server.path, Some(&query)).into_owned()),
        lines: head,
        in_session: session.is_some(),
    });
    drop(headers);
    let due = purpose
        .due(&server.config.now().timeouts, timeout)
        .map(|(limit, lost)| (Box::pin(sleep(limit)), lost));
    let mut rest = Rest {
        server: server.clone(),
        wanted: purpose.wanted(),
        interest,
        due,
        way: (!calls.is_empty()).then(|| way.clone()),
        is_events: false,
        ending: Ending::Elsewhere,
        calls,
    };
    let (response, mut rest) = match purpose {
        Purpose::Resume => {
            let response = tokio::select! {
                biased;
                response = persist(&server, &way) => response,
                lost = poll_fn(|cx| rest.poll_due(cx)) => Err(lost),
            };
            (response?, rest)
        }
        _ => ask(&method, &way, body, rest, (purpose, after)).await?,
    };
    drop(opening);
    if !matches!(purpose, Purpose::Call | Purpose::Ask | Purpose::Once) {
        rest.due = None;
        rest.soften();
    }
    if let (Purpose::Begin, Some(session)) = (purpose, session) {
        server.order.begins(&session, |expiry| server.work.spawn(expiry));
    }
    let (head, body) = response.into_parts();
    rest.ending = Ending::of(&head);
    let answers = matches!(purpose, Purpose::Call | Purpose::Ask | Purpose::Once | Purpose::Resume);
    if answers && messages::is_events(&head.headers) {
        rest.way = Some(way);
        rest.is_events = true;
    }
    let limit = rest.server.config.now().limits.result_bytes;
    let body = Passing { source: Source::Body(body), may_have_mark: false, rest };
    let (status, headers) = (head.status, without_hop(head.headers));
    Ok(Forwarded { status, headers, body: forward::Passing::Relayed(body), limit })
}

/// Sends a request, behind what it has to come `after`, and waits for the head of its answer. What may be sent twice
/// is, where its connection breaks: a server closes idle ones, and the request may be on its way just then.
async fn ask(
    method: &Method,
    way: &Arc<Way>,
    body: Bytes,
    rest: Rest,
    (purpose, after): (Purpose, Option<BoxFuture<'static, ()>>),
) -> Result<(http::Response<Incoming>, Rest), CallError> {
    let twice = purpose.may_repeat();
    let reuse = if twice { Reuse::Any } else { Reuse::Proven };
    let again = twice.then(|| body.clone());
    let traffic = if purpose == Purpose::Tell { Traffic::InPassing } else { Traffic::Call };
    let asked = match after {
        None => Asked::Sent(way.send(&rest.server, method, body, reuse, traffic)),
        Some(wait) => {
            let (server, way, method) = (rest.server.clone(), way.clone(), method.clone());
            let send = move || way.send(&server, &method, body, reuse, traffic);
            Asked::Waiting { wait, send: Box::new(send) }
        }
    };
    let rest = match (Asking { asked: Some(asked), rest: Some(rest) }.await, again) {
        (Err((CallError::Broken(_), rest)), Some(body)) => {
            // The next of those whose last answer was a 202 may be closed as well.
            let answering = way.send(&rest.server, method, body, Reuse::Proven, traffic);
            Asking { asked: Some(Asked::Sent(answering)), rest: Some(rest) }.await
        }
        (answer, _) => answer,
    };
    rest.map_err(|(lost, _)| lost)
}

/// Asks for the rest of an answer, more than once where the server cannot be reached. What it is refused
/// with at last is the answer.
async fn persist(server: &Http, way: &Way) -> Result<http::Response<Incoming>, CallError> {
    let attempt = |reached: Reached| async move {
        match reached.by(way.get(server)).await {
            Ok(response) if resume::is_for_now(response.status()) => Err(Refused::ForNow(Ok(response))),
            Ok(response) => Ok(response),
            Err(lost) => Err(Refused::ForNow(Err(lost))),
        }
    };
    resume::persist(None, attempt).await.or_else(|refused| refused)
}

// === impl Purpose ===

impl Purpose {
    /// How long it may take, and what is to be said then; `None` for as long as the client likes.
    fn due(self, limits: &Timeouts, of_call: Option<Duration>) -> Option<(Duration, CallError)> {
        let call = of_call.unwrap_or(limits.call);
        match self {
            Self::Listen => None,
            Self::Call | Self::Ask | Self::Once | Self::Resume => Some((call, CallError::CallTimeout(call))),
            Self::Begin | Self::Tell => {
                Some((limits.first_byte, CallError::FirstByteTimeout(limits.first_byte)))
            }
        }
    }

    fn wanted(self) -> Wanted {
        match self {
            Self::Listen | Self::Resume => Wanted::No,
            // Also what is only told must reach the server.
            Self::Begin | Self::Call | Self::Ask | Self::Once | Self::Tell => Wanted::AtAnyPrice,
        }
    }

    /// Whether it may be sent twice.
    fn may_repeat(self) -> bool {
        match self {
            Self::Listen | Self::Resume | Self::Begin | Self::Ask => true,
            Self::Call | Self::Once | Self::Tell => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dialect::Principal,
        runtime::Net,
        upstream::{ClientSession, Config, ServerUrl, work::Work},
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
        let work = Work::new().expect("there is a runtime");
        let http = Http::new("", &url, Config::default(), work, &Net::System).expect("a server");
        let http = Arc::new(http);
        let session = HeaderValue::from_static("s");
        let opening = http.order.opens(&session);
        let headers = HeaderMap::from_iter([(SESSION_ID.clone(), session)]);
        let session = ClientSession { principal: Principal::ANONYMOUS, query: None, headers };
        let call = session.request(Method::POST, Bytes::from_static(b"{}"), Purpose::Call);
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
