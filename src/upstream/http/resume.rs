//! Resumption of a call's broken response stream (2025-11-25, *Resumability and Redelivery*).
//!
//! Only the server can say whether more follows: an open port proves nothing, because a dying process may
//! still accept connections. The proxy requests what followed the last event. An unreachable server may be
//! restarting and is tried again, for at most [`PATIENCE`], because a client waits for the outcome.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::sleep;

use super::{
    messages::{ResponseClass, ResponseReader, SseResumption},
    server::{error_body, status_error},
    session::HttpSession,
};
use crate::upstream::{
    CallError,
    http1::{IncomingBody, PendingResponse},
};

/// Pause before a stream is resumed, if the server names none.
const PAUSE: Duration = Duration::from_millis(500);
/// Lower bounds of the pause, for servers that close a stream as soon as it is open: the first after a recent
/// message, the second without one.
const SHORTEST_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Streams in a row without a message after which the second bound applies.
const FRUITLESS: u32 = 5;
/// Lower bound of the pause after a refused attempt.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Time after the first refused attempt within which another may start, or reach the server. An attempt that
/// reached the server is waited for, because some servers hold back the response head until they have an
/// event. A server that names a longer pause gets one more attempt.
const PATIENCE: Duration = Duration::from_secs(10);
/// Upper bound of the pause, whatever the server names.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Failed attempt.
pub(super) enum AttemptFailure<R> {
    /// The server cannot be reached or is busy: another attempt may succeed.
    Transient(R),
    /// The server has nothing more to send.
    Permanent(R),
}

/// Whether an attempt has reached the server.
#[derive(Clone, Debug, Default)]
pub(super) struct ReachedFlag(Arc<AtomicBool>);

/// Pause before a stream is resumed.
pub(super) fn first_pause(retry: Option<Duration>, fruitless: u32) -> Duration {
    let shortest = SHORTEST_PAUSES[usize::from(fruitless >= FRUITLESS)];
    retry.unwrap_or(PAUSE).clamp(shortest, LONGEST_PAUSE)
}

/// Makes attempts until one succeeds, fails permanently, or the time is up; the last failure is the result
/// then. `retry` is the pause that the server named. The caller limits the time of an attempt that has
/// reached the server.
pub(super) async fn retry_resume<T, R, A>(
    retry: Option<Duration>,
    mut attempt: impl FnMut(ReachedFlag) -> A,
) -> Result<T, R>
where
    A: Future<Output = Result<T, AttemptFailure<R>>>,
{
    let pause = retry.unwrap_or_default().clamp(REFUSED_PAUSE, LONGEST_PAUSE);
    let mut last = match attempt(ReachedFlag::default()).await {
        Ok(there) => return Ok(there),
        Err(AttemptFailure::Permanent(why)) => return Err(why),
        Err(AttemptFailure::Transient(why)) => why,
    };
    // At least one more attempt, however long the server's pause is.
    let mut over = pin!(sleep(PATIENCE.max(pause + REFUSED_PAUSE)));
    loop {
        let reached = ReachedFlag::default();
        let again = async {
            sleep(pause).await;
            attempt(reached.clone()).await
        };
        let mut again = pin!(again);
        let outcome = tokio::select! {
            // The outcome of an attempt takes precedence over the time limit.
            biased;
            outcome = &mut again => outcome,
            () = &mut over => match reached.is_set() {
                true => again.await,
                false => return Err(last),
            },
        };
        match outcome {
            Ok(there) => return Ok(there),
            Err(AttemptFailure::Permanent(why)) => return Err(why),
            Err(AttemptFailure::Transient(why)) => last = why,
        }
    }
}

/// Whether a server with this status may have more to send later: it allows one stream and the broken one
/// still counts, or it is busy.
pub(super) fn is_transient(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS)
}

/// Error for a resumption that the server refused. `in_session` is whether there is a session that it can
/// have lost.
pub(in crate::upstream) fn resume_error(
    status: StatusCode,
    headers: &HeaderMap,
    body: &Bytes,
    in_session: bool,
) -> CallError {
    let lost = match status {
        StatusCode::NOT_FOUND if in_session => CallError::SessionEnded,
        _ if status.is_success() => CallError::Invalid("it is not an event stream".to_owned()),
        _ => status_error(status, headers, body),
    };
    lost.into_resume_failure()
}

/// Waits for the server's pause, and requests what followed the last event.
///
/// # Errors
/// [`CallError::SessionEnded`], [`CallError::Unauthorized`], or [`CallError::Broken`] if the server has
/// nothing more to send, or cannot be reached for a while.
pub(super) async fn resume(
    line: Arc<HttpSession>,
    mut from: SseResumption,
) -> Result<ResponseReader, CallError> {
    sleep(first_pause(from.retry, from.fruitless)).await;
    from.fruitless = from.fruitless.saturating_add(1);
    retry_resume(from.retry, |reached| attempt(&line, &from, reached)).await
}

async fn attempt(
    line: &HttpSession,
    from: &SseResumption,
    reached: ReachedFlag,
) -> Result<ResponseReader, AttemptFailure<CallError>> {
    let response = match reached.track(line.get(from.last_id.as_deref())).await {
        Ok(response) => response,
        Err(lost) => return Err(AttemptFailure::Transient(lost.into_resume_failure())),
    };
    let (head, body) = match ResponseClass::of(response, &line.http).map_err(AttemptFailure::Permanent)? {
        ResponseClass::Messages(mut messages) => {
            messages.continue_from(from.clone());
            return Ok(messages);
        }
        ResponseClass::Accepted => {
            return Err(AttemptFailure::Permanent(resume_error(
                StatusCode::ACCEPTED,
                &HeaderMap::new(),
                &Bytes::new(),
                false,
            )));
        }
        ResponseClass::Refused(head, body) => (head, body),
    };
    let body = error_body(body).await;
    let lost = match status_error(head.status, &head.headers, &body) {
        lost @ (CallError::Unauthorized { .. } | CallError::Forbidden { .. }) => lost,
        _ => resume_error(head.status, &head.headers, &body, line.has_id),
    };
    Err(if is_transient(head.status) {
        AttemptFailure::Transient(lost)
    } else {
        AttemptFailure::Permanent(lost)
    })
}

// === impl ReachedFlag ===

impl ReachedFlag {
    /// Waits for a response, and sets the flag as soon as its request has a connection.
    pub(super) async fn track(
        &self,
        mut answering: PendingResponse,
    ) -> Result<http::Response<IncomingBody>, CallError> {
        poll_fn(|cx| {
            let answer = Pin::new(&mut answering).poll(cx);
            if !answering.is_connecting() {
                self.0.store(true, Ordering::Relaxed);
            }
            answer
        })
        .await
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Clock, SystemClock};
    use std::cell::{Cell, RefCell};

    /// Times of the attempts at a server that refuses for `refuses_for` seconds, whether it was reached, and
    /// the total time, in seconds.
    async fn asked(retry: Option<u64>, refuses_for: u64) -> (Vec<u64>, bool, u64) {
        let clock = SystemClock::new();
        let began = clock.now();
        let after = || (clock.now() - began).as_secs();
        let times = RefCell::new(Vec::new());
        let outcome = retry_resume(retry.map(Duration::from_secs), |_| {
            times.borrow_mut().push(after());
            std::future::ready(if after() < refuses_for {
                Err(AttemptFailure::Transient(()))
            } else {
                Ok(())
            })
        })
        .await;
        let times = times.borrow().clone();
        (times, outcome.is_ok(), after())
    }

    #[tokio::test(start_paused = true)]
    async fn a_resumption_fails_ten_seconds_after_the_first_attempt() {
        assert_eq!(asked(None, 0).await, (vec![0], true, 0));
        assert_eq!(asked(None, 3).await, (vec![0, 1, 2, 3], true, 3));
        let (times, reached, after) = asked(None, 60).await;
        assert_eq!((times[9], reached, after), (9, false, 10));
        assert_eq!(asked(Some(4), 60).await, (vec![0, 4, 8], false, 10), "not before the server wants it");
        assert_eq!(asked(Some(30), 30).await, (vec![0, 30], true, 30), "at least once more");
        assert_eq!(asked(Some(30), 60).await, (vec![0, 30], false, 31));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_reached_the_server_is_waited_for() {
        for (reaches, ends) in [(true, Ok(15)), (false, Err(10))] {
            let clock = SystemClock::new();
            let began = clock.now();
            let times = Cell::new(0);
            let outcome = retry_resume(None, |reached| {
                times.set(times.get() + 1);
                let first = times.get() == 1;
                async move {
                    if first {
                        return Err(AttemptFailure::Transient(()));
                    }
                    reached.0.store(reaches, Ordering::Relaxed);
                    sleep(Duration::from_secs(14)).await;
                    Ok(())
                }
            })
            .await;
            let after = (clock.now() - began).as_secs();
            assert_eq!((outcome.map(|()| after).map_err(|()| after), times.get()), (ends, 2));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_permanent_failure_is_not_retried() {
        let times = Cell::new(0);
        let refused: Result<(), _> = retry_resume(None, |_| {
            times.set(times.get() + 1);
            std::future::ready(Err(AttemptFailure::Permanent("no")))
        })
        .await;
        assert_eq!((refused, times.get()), (Err("no"), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_pauses_of_a_resumption_are_bounded() {
        let named = |seconds, fruitless| first_pause(Some(Duration::from_secs(seconds)), fruitless);
        assert_eq!(named(0, FRUITLESS - 1), SHORTEST_PAUSES[0]);
        assert_eq!(named(0, FRUITLESS), SHORTEST_PAUSES[1], "it opens streams and brings nothing");
        assert_eq!(named(1 << 40, 0), LONGEST_PAUSE);
        assert_eq!(asked(Some(1 << 40), 1 << 20).await, (vec![0, 60], false, 61));
        assert_eq!(asked(Some(0), 60).await, asked(None, 60).await, "once a second at most");
    }
}
