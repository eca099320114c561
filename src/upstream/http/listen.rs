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

/// Pause before a closed stream is opened again, if the server names none. Doubles with each attempt without
/// a message.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Lower bound of the pause: a server may close a stream as soon as it is open.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// Lower bound of the time between two gap notices: a server may close the stream every second.
const MISSED_PERIOD: Duration = Duration::from_secs(30);
/// Attempts in a row without a message after which the pause is at least [`PAUSE`].
const FRUITLESS: u32 = 5;

/// Outcome of a request for the stream.
enum StreamAttempt {
    Open(Box<ResponseReader>),
    /// The server offers no such stream, or not to the proxy.
    Refused,
    /// The stream is refused after there was one: the server may have lost the session.
    Suspect,
    /// The session has ended.
    Ended,
    /// A later attempt may succeed.
    Failed,
}

/// Gap notice: messages may have been sent while there was no stream.
#[derive(Default)]
struct GapNotice {
    /// A notice is due.
    any: bool,
    /// Time until the next notice is allowed.
    quiet: Option<Pin<Box<Sleep>>>,
}

// === impl GapNotice ===

impl GapNotice {
    /// Resolves when a notice is due, once for each gap. Cancel-safe.
    async fn wait_due(&mut self) {
        if !self.any {
            return pending().await;
        }
        if let Some(quiet) = &mut self.quiet {
            quiet.await;
        }
        *self = Self { any: false, quiet: Some(Box::pin(sleep(MISSED_PERIOD))) };
    }
}

/// Opens and reads the stream repeatedly, until it is refused or the session ends.
pub(super) async fn listen(line: &HttpSession, mut deliver: impl FnMut(SessionEvent) + Send) {
    let mut retry = None;
    let mut fruitless = 0;
    let mut had_one = false;
    let mut missed = GapNotice::default();
    loop {
        let attempt = open_stream(line, had_one).await;
        match attempt {
            StreamAttempt::Refused => deliver(SessionEvent::Unavailable),
            StreamAttempt::Open(_) if had_one => missed.any = true,
            StreamAttempt::Open(_)
            | StreamAttempt::Suspect
            | StreamAttempt::Ended
            | StreamAttempt::Failed => {}
        }
        deliver(SessionEvent::Settled);
        match attempt {
            StreamAttempt::Open(mut messages) => {
                had_one = true;
                if read_stream(&mut messages, &mut missed, &mut deliver).await {
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

/// Pause before the next attempt, after this number of attempts without a message.
fn pause(named: Option<Duration>, fruitless: u32) -> Duration {
    match named {
        Some(named) if fruitless < FRUITLESS => named.clamp(SHORTEST_PAUSE, LONGEST_PAUSE),
        Some(named) => named.clamp(PAUSE, LONGEST_PAUSE),
        None => PAUSE.saturating_mul(1 << fruitless.min(8)).min(LONGEST_PAUSE),
    }
}

async fn open_stream(line: &HttpSession, had_one: bool) -> StreamAttempt {
    let Ok(response) = line.get(None).await else { return StreamAttempt::Failed };
    let status = response.status();
    match ResponseClass::of(response, &line.http) {
        Ok(ResponseClass::Messages(messages)) if messages.resumption().is_some() => {
            StreamAttempt::Open(Box::new(messages))
        }
        // Some servers answer 200 or 202 without a body.
        Ok(ResponseClass::Messages(_) | ResponseClass::Accepted) | Err(_) => StreamAttempt::Refused,
        Ok(ResponseClass::Refused(_, body)) => judge_refusal(line, status, body, had_one),
    }
}

fn judge_refusal(line: &HttpSession, status: StatusCode, body: IncomingBody, had_one: bool) -> StreamAttempt {
    line.http.drain_later(body);
    match status {
        // After an earlier stream, the status concerns the session.
        StatusCode::NOT_FOUND | StatusCode::GONE if had_one && line.has_id => StreamAttempt::Ended,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE if had_one => {
            StreamAttempt::Suspect
        }
        // The server allows one stream, and the broken one still counts; or there are too many requests.
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => StreamAttempt::Failed,
        StatusCode::NOT_IMPLEMENTED => StreamAttempt::Refused,
        status if status.is_client_error() => StreamAttempt::Refused,
        _ => StreamAttempt::Failed,
    }
}

/// Reads a stream to its end, and sends due gap notices. Returns whether a message arrived.
async fn read_stream(
    messages: &mut ResponseReader,
    missed: &mut GapNotice,
    deliver: &mut (impl FnMut(SessionEvent) + Send),
) -> bool {
    let mut worth = false;
    loop {
        let next = tokio::select! {
            biased;
            () = missed.wait_due() => {
                deliver(SessionEvent::Gap);
                continue;
            }
            next = poll_fn(|cx| messages.poll_next(cx)) => next,
        };
        match next {
            Ok(frame) => {
                worth = true;
                deliver(SessionEvent::Message(frame));
            }
            Err(ReadEnd::Ended(_)) => return worth,
            Err(ReadEnd::Lost(lost)) => {
                // The start of the event after one that is too large is unknown: continue with a new stream.
                tracing::debug!(error = %lost, "an event on the session's own stream could not be read");
                return worth;
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
        let mut missed = GapNotice { any: true, quiet: None };
        assert!(missed.wait_due().now_or_never().is_some(), "at once");
        assert!(missed.wait_due().now_or_never().is_none(), "nothing more was missed");
        missed.any = true;
        assert!(timeout(MISSED_PERIOD - PAUSE, missed.wait_due()).await.is_err());
        missed.any = true;
        missed.wait_due().await;
        sleep(10 * MISSED_PERIOD).await;
        missed.any = true;
        assert!(missed.wait_due().now_or_never().is_some());
    }

    #[test]
    fn the_pause_before_a_new_stream_is_bounded() {
        let after = |named: u64, fruitless| pause(Some(Duration::from_millis(named)), fruitless);
        assert_eq!(after(0, 0), SHORTEST_PAUSE);
        assert_eq!(after(500, 4), Duration::from_millis(500));
        assert_eq!(after(0, 5), PAUSE);
        assert_eq!(after(2000, 5), Duration::from_secs(2));
        assert_eq!(after(3_600_000, 0), LONGEST_PAUSE);
        let own: Vec<_> = (0..7).map(|fruitless| pause(None, fruitless).as_secs()).collect();
        assert_eq!(own, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pause(None, u32::MAX), LONGEST_PAUSE);
    }
}
