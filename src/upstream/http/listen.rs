//! Reader of a session's GET stream (2025-11-25, *Transports*, Listening for Messages from the Server).
//!
//! A server need not offer the stream, and may close it at any time; then it is opened again as a new one.
//!
//! It is never resumed after the last event: a server that stores the events of all sessions together replays
//! those of other sessions, requests to other clients included. (The example event stores of SDKs do this if
//! a server shares one among its sessions.) Messages sent in between are reported as a
//! [gap](SessionEvent::Gap).

use http::StatusCode;
use std::{
    future::{pending, poll_fn},
    pin::Pin,
    time::Duration,
};
use tokio::time::{Sleep, sleep};

use super::{
    messages::{ReadEnd, ResponseClass, ResponseReader},
    session::HttpSession,
};
use crate::upstream::{http1::IncomingBody, transport::SessionEvent};

/// Pause before a closed stream is opened again, if the server names no pause. Doubles with each attempt
/// without a message.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);
/// Upper bound of the pause.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Lower bound of the pause: a server may close a stream as soon as the stream is open.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Lower bound of the time between two gap notices: a server may close the stream every second.
const GAP_NOTICE_INTERVAL: Duration = Duration::from_secs(30);
/// Number of consecutive attempts without a message after which the pause is at least [`DEFAULT_PAUSE`].
const MAX_FRUITLESS: u32 = 5;

/// Outcome of a request for the stream.
enum StreamAttempt {
    Open(Box<ResponseReader>),
    /// The server offers no GET stream, or none to the proxy.
    Refused,
    /// The server refuses the stream although there was one before: it may have lost the session.
    Suspect,
    /// The session has ended.
    Ended,
    /// A later attempt may succeed.
    Failed,
}

/// Gap notice: messages may have been sent while there was no stream.
#[derive(Default)]
struct GapNotice {
    /// Whether a notice must be sent.
    is_pending: bool,
    /// Time until the next notice may be sent.
    min_interval: Option<Pin<Box<Sleep>>>,
}

// === impl GapNotice ===

impl GapNotice {
    /// Resolves when a gap notice must be sent, once for each gap. Cancel-safe.
    async fn wait_due(&mut self) {
        if !self.is_pending {
            return pending().await;
        }
        if let Some(quiet) = &mut self.min_interval {
            quiet.await;
        }
        *self = Self { is_pending: false, min_interval: Some(Box::pin(sleep(GAP_NOTICE_INTERVAL))) };
    }
}

/// Opens and reads the stream repeatedly, until it is refused or the session ends.
pub(super) async fn listen(session: &HttpSession, mut deliver: impl FnMut(SessionEvent) + Send) {
    let mut retry = None;
    let mut fruitless = 0;
    let mut had_stream = false;
    let mut gap_notice = GapNotice::default();
    loop {
        let attempt = open_stream(session, had_stream).await;
        match attempt {
            StreamAttempt::Refused => deliver(SessionEvent::Unavailable),
            StreamAttempt::Open(_) if had_stream => gap_notice.is_pending = true,
            StreamAttempt::Open(_)
            | StreamAttempt::Suspect
            | StreamAttempt::Ended
            | StreamAttempt::Failed => {}
        }
        deliver(SessionEvent::Settled);
        match attempt {
            StreamAttempt::Open(mut messages) => {
                had_stream = true;
                if read_stream(&mut messages, &mut gap_notice, &mut deliver).await {
                    fruitless = 0;
                }
                retry = messages.resumption().and_then(|resumption| resumption.retry).or(retry);
            }
            StreamAttempt::Refused => return,
            StreamAttempt::Suspect => return deliver(SessionEvent::Suspect),
            StreamAttempt::Ended => return deliver(SessionEvent::Ended),
            StreamAttempt::Failed => {}
        }
        sleep(pause(retry, fruitless)).await;
        fruitless = fruitless.saturating_add(1);
    }
}

/// Returns the pause before the next attempt. `requested` is the pause that the server named, `fruitless` the
/// number of attempts without a message.
fn pause(requested: Option<Duration>, fruitless: u32) -> Duration {
    match requested {
        Some(requested) if fruitless < MAX_FRUITLESS => requested.clamp(MIN_PAUSE, MAX_PAUSE),
        Some(requested) => requested.clamp(DEFAULT_PAUSE, MAX_PAUSE),
        None => DEFAULT_PAUSE.saturating_mul(1 << fruitless.min(8)).min(MAX_PAUSE),
    }
}

async fn open_stream(session: &HttpSession, had_stream: bool) -> StreamAttempt {
    let Ok(response) = session.open_stream(None).await else { return StreamAttempt::Failed };
    let status = response.status();
    match ResponseClass::classify(response, &session.http) {
        Ok(ResponseClass::Messages(messages)) if messages.resumption().is_some() => {
            StreamAttempt::Open(Box::new(messages))
        }
        // Some servers answer 200 or 202 without a body.
        Ok(ResponseClass::Messages(_) | ResponseClass::Accepted) | Err(_) => StreamAttempt::Refused,
        Ok(ResponseClass::Refused(_, body)) => classify_refusal(session, status, body, had_stream),
    }
}

fn classify_refusal(
    session: &HttpSession,
    status: StatusCode,
    body: IncomingBody,
    had_stream: bool,
) -> StreamAttempt {
    session.http.drain_later(body);
    match status {
        // After an earlier stream, the status is about the session.
        StatusCode::NOT_FOUND | StatusCode::GONE if had_stream && session.has_id => StreamAttempt::Ended,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE if had_stream => {
            StreamAttempt::Suspect
        }
        // The server allows one stream and still counts the broken one, or there are too many requests.
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => StreamAttempt::Failed,
        StatusCode::NOT_IMPLEMENTED => StreamAttempt::Refused,
        status if status.is_client_error() => StreamAttempt::Refused,
        _ => StreamAttempt::Failed,
    }
}

/// Reads a stream to its end, and sends due gap notices. Returns whether a message arrived.
async fn read_stream(
    messages: &mut ResponseReader,
    gap_notice: &mut GapNotice,
    deliver: &mut (impl FnMut(SessionEvent) + Send),
) -> bool {
    let mut has_message = false;
    loop {
        let next = tokio::select! {
            biased;
            () = gap_notice.wait_due() => {
                deliver(SessionEvent::Gap);
                continue;
            }
            next = poll_fn(|cx| messages.poll_next(cx)) => next,
        };
        match next {
            Ok(frame) => {
                has_message = true;
                deliver(SessionEvent::Message(frame));
            }
            Err(ReadEnd::Ended(_)) => return has_message,
            Err(ReadEnd::Lost(error)) => {
                // The end of an event that is too large is unknown: continue with a new stream.
                tracing::debug!(error = %error, "an event on the session's own stream could not be read");
                return has_message;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn a_gap_is_reported_at_once_and_then_at_bounded_intervals() {
        let mut missed = GapNotice { is_pending: true, min_interval: None };
        assert!(missed.wait_due().now_or_never().is_some(), "at once");
        assert!(missed.wait_due().now_or_never().is_none(), "nothing more was missed");
        missed.is_pending = true;
        assert!(timeout(GAP_NOTICE_INTERVAL - DEFAULT_PAUSE, missed.wait_due()).await.is_err());
        missed.is_pending = true;
        missed.wait_due().await;
        sleep(10 * GAP_NOTICE_INTERVAL).await;
        missed.is_pending = true;
        assert!(missed.wait_due().now_or_never().is_some());
    }

    #[test]
    fn the_pause_before_a_new_stream_is_bounded() {
        let after = |named: u64, fruitless| pause(Some(Duration::from_millis(named)), fruitless);
        assert_eq!(after(0, 0), MIN_PAUSE);
        assert_eq!(after(500, 4), Duration::from_millis(500));
        assert_eq!(after(0, 5), DEFAULT_PAUSE);
        assert_eq!(after(2000, 5), Duration::from_secs(2));
        assert_eq!(after(3_600_000, 0), MAX_PAUSE);
        let own: Vec<_> = (0..7).map(|fruitless| pause(None, fruitless).as_secs()).collect();
        assert_eq!(own, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pause(None, u32::MAX), MAX_PAUSE);
    }
}
