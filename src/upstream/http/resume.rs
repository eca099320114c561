//! Taking up a call's response stream that broke (2025-11-25, *Resumability and Redelivery*).
//!
//! Only the server can say whether there is more to come: that somebody takes connections at its address
//! proves nothing, for a process that dies may still do so. So it is asked for what followed the last
//! event. A server that cannot be reached may be about to come back, and is asked again, but not for
//! longer than [`PATIENCE`]: a client waits for what becomes of its call.

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

/// The pause before a stream is taken up, where the server named none.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause never is shorter, so that a server that closes what it has just opened is not besieged:
/// the first where it has brought a message lately, the second where it has not.
const SHORTEST_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Streams in a row that bring nothing before the second applies.
const FRUITLESS: u32 = 5;
/// The pause behind an attempt that was refused never is shorter.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// How long after the first attempt that was refused another may begin, or reach the server: one that has
/// is waited for, for some servers hold back the head of an answer until they have something to say. A
/// server that names a longer pause than this is asked once more behind it.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest pause: also a server that names a longer one is asked after this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What came of one attempt that brought no stream.
pub(super) enum AttemptFailure<R> {
    /// The server cannot be reached, or has no time: another attempt may be worth it.
    Transient(R),
    /// It has nothing more to give.
    Permanent(R),
}

/// Whether an attempt has reached the server.
#[derive(Clone, Debug, Default)]
pub(super) struct ReachedFlag(Arc<AtomicBool>);

/// The pause before a stream is taken up, if the server has not just broken it off in vain.
pub(super) fn first_pause(retry: Option<Duration>, fruitless: u32) -> Duration {
    let shortest = SHORTEST_PAUSES[usize::from(fruitless >= FRUITLESS)];
    retry.unwrap_or(PAUSE).clamp(shortest, LONGEST_PAUSE)
}

/// Makes attempts until one brings something, is refused for good, or has been refused for too long;
/// the last reason is what it gives then. `retry` is the pause that the server named. How long an attempt
/// that has reached the server may take is for the caller to say.
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
    // At least one more, however long the server wants to be left alone.
    let mut over = pin!(sleep(PATIENCE.max(pause + REFUSED_PAUSE)));
    loop {
        let reached = ReachedFlag::default();
        let again = async {
            sleep(pause).await;
            attempt(reached.clone()).await
        };
        let mut again = pin!(again);
        let outcome = tokio::select! {
            // What an attempt has brought counts, whatever else is due.
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

/// Whether a server that answers like this may have more to give later: only one stream at a time, and
/// the one that broke still counts; or too much to do.
pub(super) fn is_transient(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS)
}

/// What it means that a server refuses to go on with a stream. `in_session` is whether there is a session
/// that it can have lost.
pub(in crate::upstream) fn resume_error(
    status: StatusCode,
    headers: &HeaderMap,
    body: &Bytes,
    in_session: bool,
) -> CallError {
    let lost = match status {
        StatusCode::NOT_FOUND if in_session => CallError::SessionEnded,
        _ if status.is_success() => CallError::Invalid("it is no event stream".to_owned()),
        _ => status_error(status, headers, body),
    };
    lost.into_resume_failure()
}

/// Waits as long as the server wants, and asks for what followed the last event.
///
/// # Errors
/// [`CallError::SessionEnded`], [`CallError::Unauthorized`], or [`CallError::Broken`] where the server has nothing
/// more to give, or cannot be reached for a while.
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

// === impl Reached ===

impl ReachedFlag {
    /// Waits for an answer, and says as soon as its request has a connection.
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

    /// When a server is asked that refuses for so long, in seconds after the first time; whether it is
    /// reached, and when that is known.
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
    async fn a_server_that_refuses_is_given_up_ten_seconds_after_the_first_attempt() {
        assert_eq!(asked(None, 0).await, (vec![0], true, 0));
        assert_eq!(asked(None, 3).await, (vec![0, 1, 2, 3], true, 3));
        let (times, reached, after) = asked(None, 60).await;
        assert_eq!((times[9], reached, after), (9, false, 10));
        assert_eq!(asked(Some(4), 60).await, (vec![0, 4, 8], false, 10), "not before the server wants it");
        assert_eq!(asked(Some(30), 30).await, (vec![0, 30], true, 30), "at least once more");
        assert_eq!(asked(Some(30), 60).await, (vec![0, 30], false, 31));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_reached_is_waited_for_and_one_that_was_not_is_not() {
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
    async fn what_is_refused_for_good_is_not_asked_for_again() {
        let times = Cell::new(0);
        let refused: Result<(), _> = retry_resume(None, |_| {
            times.set(times.get() + 1);
            std::future::ready(Err(AttemptFailure::Permanent("no")))
        })
        .await;
        assert_eq!((refused, times.get()), (Err("no"), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_not_asked_again_faster_or_later_than_it_is_good_for() {
        let named = |seconds, fruitless| first_pause(Some(Duration::from_secs(seconds)), fruitless);
        assert_eq!(named(0, FRUITLESS - 1), SHORTEST_PAUSES[0]);
        assert_eq!(named(0, FRUITLESS), SHORTEST_PAUSES[1], "it opens streams and brings nothing");
        assert_eq!(named(1 << 40, 0), LONGEST_PAUSE);
        assert_eq!(asked(Some(1 << 40), 1 << 20).await, (vec![0, 60], false, 61));
        assert_eq!(asked(Some(0), 60).await, asked(None, 60).await, "once a second at most");
    }
}
