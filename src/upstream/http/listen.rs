//! Reading what a server says of its own accord: the session's GET stream.
//!
//! (2025-11-25, *Transports*, Listening for Messages from the Server.) A server need not offer one.
//! One that does may close it when it likes; then it is opened again, as a new one.
//!
//! Not behind the last event, whatever ids the events have: a server that keeps the events of all its sessions in
//! one place gives back what was said on the GET stream of any of them, questions included, and those would be put
//! to somebody they were not meant for. (The event stores that SDKs give as examples are such, where a server
//! hands all its sessions the same.) What was said in between is told to be [missed](SessionEvent::Gap).

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

/// The pause before a closed stream is opened again, where the server names none. Doubles with
/// every attempt that brings nothing.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The pause never is shorter, whatever the server names: it may close what it has just opened.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// It is told at most this often that something was missed: a server may close the stream every second.
const MISSED_PERIOD: Duration = Duration::from_secs(30);
/// Attempts in a row that bring nothing, before it is [`PAUSE`] at least.
const FRUITLESS: u32 = 5;

/// What came of asking for the stream.
enum StreamAttempt {
    Open(Box<ResponseReader>),
    /// This server has no such stream, or not for us.
    Refused,
    /// The same, where there has been one: the server may have lost the session.
    Suspect,
    /// The session is gone.
    Ended,
    /// Perhaps later.
    Failed,
}

/// What was said while there was no stream.
#[derive(Default)]
struct GapNotice {
    /// There is something to tell.
    any: bool,
    /// Until it may be told again.
    quiet: Option<Pin<Box<Sleep>>>,
}

// === impl Missed ===

impl GapNotice {
    /// Resolves when it is to be told, once for each time that something was missed. Dropping it in between loses
    /// nothing.
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

/// Asks for the stream and reads it, again and again, until it is refused or the session is gone.
pub(super) async fn listen(line: &HttpSession, mut tell: impl FnMut(SessionEvent) + Send) {
    let mut retry = None;
    let mut fruitless = 0;
    let mut had_one = false;
    let mut missed = GapNotice::default();
    loop {
        let attempt = open_stream(line, had_one).await;
        match attempt {
            StreamAttempt::Refused => tell(SessionEvent::Unavailable),
            StreamAttempt::Open(_) if had_one => missed.any = true,
            StreamAttempt::Open(_)
            | StreamAttempt::Suspect
            | StreamAttempt::Ended
            | StreamAttempt::Failed => {}
        }
        tell(SessionEvent::Settled);
        match attempt {
            StreamAttempt::Open(mut messages) => {
                had_one = true;
                if read_stream(&mut messages, &mut missed, &mut tell).await {
                    fruitless = 0;
                }
                retry = messages.resumption().and_then(|resumption| resumption.retry).or(retry);
            }
            StreamAttempt::Refused => return,
            StreamAttempt::Suspect => return tell(SessionEvent::Suspect),
            StreamAttempt::Ended => return tell(SessionEvent::Ended),
            StreamAttempt::Failed => {}
        }
        sleep(pause(retry, fruitless)).await;
        fruitless = fruitless.saturating_add(1);
    }
}

/// How long to wait before the stream is asked for again, after so many attempts that brought
/// nothing.
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
        // Some answer 200 or 202 with nothing in it.
        Ok(ResponseClass::Messages(_) | ResponseClass::Accepted) | Err(_) => StreamAttempt::Refused,
        Ok(ResponseClass::Refused(_, body)) => judge_refusal(line, status, body, had_one),
    }
}

fn judge_refusal(line: &HttpSession, status: StatusCode, body: IncomingBody, had_one: bool) -> StreamAttempt {
    line.http.drain_later(body);
    match status {
        // Where there has been a stream, this is about the session.
        StatusCode::NOT_FOUND | StatusCode::GONE if had_one && line.has_id => StreamAttempt::Ended,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE if had_one => {
            StreamAttempt::Suspect
        }
        // Only one stream at a time, and the one that broke still counts; or too many requests.
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => StreamAttempt::Failed,
        StatusCode::NOT_IMPLEMENTED => StreamAttempt::Refused,
        status if status.is_client_error() => StreamAttempt::Refused,
        _ => StreamAttempt::Failed,
    }
}

/// Reads a stream to its end, and tells what was missed before it. Whether it was worth having.
async fn read_stream(
    messages: &mut ResponseReader,
    missed: &mut GapNotice,
    tell: &mut (impl FnMut(SessionEvent) + Send),
) -> bool {
    let mut worth = false;
    loop {
        let next = tokio::select! {
            biased;
            () = missed.wait_due() => {
                tell(SessionEvent::Gap);
                continue;
            }
            next = poll_fn(|cx| messages.poll_next(cx)) => next,
        };
        match next {
            Ok(frame) => {
                worth = true;
                tell(SessionEvent::Message(frame));
            }
            Err(ReadEnd::Ended(_)) => return worth,
            Err(ReadEnd::Lost(lost)) => {
                // Where the next event begins behind one that is too large is unknown: begin with a new stream.
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
    async fn what_was_missed_is_told_at_once_and_then_only_so_often() {
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
    fn a_server_is_not_besieged_whatever_pause_it_names() {
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
