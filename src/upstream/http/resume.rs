//! Resumption of a call's broken response stream (2025-11-25, *Resumability and Redelivery*).
//!
//! Only the server can say whether more follows: an open port proves nothing, because a dying process may
//! still accept connections. The proxy requests the events after the last one. An unreachable server may be
//! restarting and is tried again, for at most [`RETRY_WINDOW`], because a client waits for the outcome.

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

/// Pause before a stream is resumed, if the server names no pause.
const DEFAULT_PAUSE: Duration = Duration::from_millis(500);
/// Lower bounds of the pause, for servers that close a stream as soon as it is open: the first applies after
/// a recent message, the second after [`MAX_FRUITLESS`] resumptions without a message.
const MIN_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Number of consecutive resumptions without a message from which the second lower bound applies.
const MAX_FRUITLESS: u32 = 5;
/// Lower bound of the pause between two attempts.
const MIN_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time after the first failed attempt within which another attempt may start, or reach the server. An
/// attempt that has reached the server is awaited, because some servers hold back the response head until
/// they have an event. A server that names a longer pause gets one more attempt.
const RETRY_WINDOW: Duration = Duration::from_secs(10);
/// Upper bound of the pause, whatever pause the server names.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Failure of an attempt to resume.
pub(super) enum AttemptFailure<R> {
    /// The server is unreachable or busy: another attempt may succeed.
    Transient(R),
    /// The server has nothing more to send.
    Permanent(R),
}

/// Flag that an attempt has reached the server: its request has a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct ReachedFlag(Arc<AtomicBool>);

/// Returns the pause before a stream is resumed. `retry` is the pause that the server named, `fruitless` the
/// number of consecutive resumptions without a message.
pub(super) fn first_pause(retry: Option<Duration>, fruitless: u32) -> Duration {
    let min_pause = MIN_PAUSES[usize::from(fruitless >= MAX_FRUITLESS)];
    retry.unwrap_or(DEFAULT_PAUSE).clamp(min_pause, MAX_PAUSE)
}

/// Makes attempts until one succeeds, fails permanently, or the time is up; then the last failure is the
/// result. `retry` is the pause that the server named. The caller limits the time of an attempt that has
/// reached the server.
pub(super) async fn retry_resume<T, R, A>(
    retry: Option<Duration>,
    mut attempt: impl FnMut(ReachedFlag) -> A,
) -> Result<T, R>
where
    A: Future<Output = Result<T, AttemptFailure<R>>>,
{
    let pause = retry.unwrap_or_default().clamp(MIN_RETRY_PAUSE, MAX_PAUSE);
    let mut last_failure = match attempt(ReachedFlag::default()).await {
        Ok(value) => return Ok(value),
        Err(AttemptFailure::Permanent(failure)) => return Err(failure),
        Err(AttemptFailure::Transient(failure)) => failure,
    };
    // At least one more attempt, however long the server's pause is.
    let mut deadline = pin!(sleep(RETRY_WINDOW.max(pause + MIN_RETRY_PAUSE)));
    loop {
        let reached = ReachedFlag::default();
        let next_attempt = async {
            sleep(pause).await;
            attempt(reached.clone()).await
        };
        let mut next_attempt = pin!(next_attempt);
        let outcome = tokio::select! {
            // The outcome of an attempt takes precedence over the time limit.
            biased;
            outcome = &mut next_attempt => outcome,
            () = &mut deadline => match reached.is_set() {
                true => next_attempt.await,
                false => return Err(last_failure),
            },
        };
        match outcome {
            Ok(value) => return Ok(value),
            Err(AttemptFailure::Permanent(failure)) => return Err(failure),
            Err(AttemptFailure::Transient(failure)) => last_failure = failure,
        }
    }
}

/// Whether a server that sent this status may have more to send later: it is busy, or it allows one stream
/// and still counts the broken one.
pub(super) fn is_transient(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS)
}

/// Returns the error for a resumption that the server refused. `in_session` says whether there is a session
/// that the server may have lost.
pub(in crate::upstream) fn resume_error(
    status: StatusCode,
    headers: &HeaderMap,
    body: &Bytes,
    in_session: bool,
) -> CallError {
    let error = match status {
        StatusCode::NOT_FOUND if in_session => CallError::SessionEnded,
        _ if status.is_success() => CallError::Invalid("it is not an event stream".to_owned()),
        _ => status_error(status, headers, body),
    };
    error.into_resume_failure()
}

/// Waits for the pause that the server named, and requests the events after the last one.
///
/// # Errors
/// [`CallError::SessionEnded`], [`CallError::Unauthorized`], or [`CallError::Broken`] if the server has
/// nothing more to send, or cannot be reached for a while.
pub(super) async fn resume(
    session: Arc<HttpSession>,
    mut position: SseResumption,
) -> Result<ResponseReader, CallError> {
    sleep(first_pause(position.retry, position.fruitless)).await;
    position.fruitless = position.fruitless.saturating_add(1);
    retry_resume(position.retry, |reached| resume_once(&session, &position, reached)).await
}

async fn resume_once(
    session: &HttpSession,
    position: &SseResumption,
    reached: ReachedFlag,
) -> Result<ResponseReader, AttemptFailure<CallError>> {
    let response = match reached.track(session.open_stream(position.last_id.as_deref())).await {
        Ok(response) => response,
        Err(error) => return Err(AttemptFailure::Transient(error.into_resume_failure())),
    };
    let (head, body) =
        match ResponseClass::classify(response, &session.http).map_err(AttemptFailure::Permanent)? {
            ResponseClass::Messages(mut messages) => {
                messages.continue_from(position.clone());
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
    let error = match status_error(head.status, &head.headers, &body) {
        error @ (CallError::Unauthorized { .. } | CallError::Forbidden { .. }) => error,
        _ => resume_error(head.status, &head.headers, &body, session.has_id),
    };
    Err(if is_transient(head.status) {
        AttemptFailure::Transient(error)
    } else {
        AttemptFailure::Permanent(error)
    })
}

// === impl ReachedFlag ===

impl ReachedFlag {
    /// Waits for the response head, and sets the flag as soon as the request has a connection.
    pub(super) async fn track(
        &self,
        mut pending: PendingResponse,
    ) -> Result<http::Response<IncomingBody>, CallError> {
        poll_fn(|cx| {
            let result = Pin::new(&mut pending).poll(cx);
            if !pending.is_connecting() {
                self.0.store(true, Ordering::Relaxed);
            }
            result
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
    async fn attempt_times(retry: Option<u64>, refuses_for: u64) -> (Vec<u64>, bool, u64) {
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
        assert_eq!(attempt_times(None, 0).await, (vec![0], true, 0));
        assert_eq!(attempt_times(None, 3).await, (vec![0, 1, 2, 3], true, 3));
        let (times, reached, after) = attempt_times(None, 60).await;
        assert_eq!((times[9], reached, after), (9, false, 10));
        assert_eq!(
            attempt_times(Some(4), 60).await,
            (vec![0, 4, 8], false, 10),
            "not before the server wants it"
        );
        assert_eq!(attempt_times(Some(30), 30).await, (vec![0, 30], true, 30), "at least once more");
        assert_eq!(attempt_times(Some(30), 60).await, (vec![0, 30], false, 31));
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
        assert_eq!(named(0, MAX_FRUITLESS - 1), MIN_PAUSES[0]);
        assert_eq!(named(0, MAX_FRUITLESS), MIN_PAUSES[1], "it opens streams and brings nothing");
        assert_eq!(named(1 << 40, 0), MAX_PAUSE);
        assert_eq!(attempt_times(Some(1 << 40), 1 << 20).await, (vec![0, 60], false, 61));
        assert_eq!(attempt_times(Some(0), 60).await, attempt_times(None, 60).await, "once a second at most");
    }
}
