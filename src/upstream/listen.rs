//! Reading what a server says of its own accord: the session's GET stream.
//!
//! (2025-11-25, *Transports*, Listening for Messages from the Server.) A server need not offer one.
//! One that does may close it when it likes; then it is opened again, from the last event if events
//! have ids.

use http::StatusCode;
use std::{future::poll_fn, sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    http1::Incoming,
    messages::{Messages, Opening, Resumption, Stop},
    session::Session,
};

/// How long a session's first call waits for the stream: some servers hold back its head until
/// there is something to say.
const OPENING: Duration = Duration::from_millis(100);
/// The pause before a closed stream is opened again, where the server names none. Doubles with
/// every attempt that brings nothing.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The pause never is shorter, whatever the server names: it may close what it has just opened.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// Attempts in a row that bring nothing, before it is [`PAUSE`] at least.
const FRUITLESS: u32 = 5;

/// What came of asking for the stream.
enum Attempt {
    Open(Messages),
    /// This server has no such stream, or not for us.
    Refused,
    /// The session is gone.
    Ended,
    /// Perhaps later.
    Failed,
}

/// Asks for the stream and goes on reading it in the background until the session is over. Returns
/// when the server has taken or refused it, or after a short while.
pub(super) async fn start(session: &Arc<Session>) {
    let (opened, heard) = oneshot::channel();
    let reader = session.clone();
    session.server.spawn(async move {
        let over = reader.over.clone();
        tokio::select! {
            () = over.cancelled() => {}
            () = listen(&reader, opened) => {}
        }
    });
    // A reader that ends has nothing more to wait for either.
    let _ = timeout(OPENING, heard).await;
}

async fn listen(session: &Arc<Session>, opened: oneshot::Sender<()>) {
    let mut opened = Some(opened);
    let mut resumption = Resumption::default();
    let mut fruitless = 0;
    let mut had_one = false;
    loop {
        let attempt = ask(session, resumption.last_id.as_deref(), had_one).await;
        if matches!(attempt, Attempt::Refused) {
            session.set_deaf();
        }
        if let Some(opened) = opened.take() {
            let _ = opened.send(());
        }
        match attempt {
            Attempt::Open(mut messages) => {
                had_one = true;
                messages.go_on_from(resumption.clone());
                if read(session, &mut messages).await {
                    fruitless = 0;
                }
                resumption = messages.resumption().cloned().unwrap_or_default();
            }
            Attempt::Refused => return,
            Attempt::Ended => return session.ended(),
            Attempt::Failed => {}
        }
        sleep(pause(resumption.retry, fruitless)).await;
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

async fn ask(session: &Arc<Session>, last_id: Option<&str>, had_one: bool) -> Attempt {
    let Ok(response) = session.get(last_id).await else { return Attempt::Failed };
    let status = response.status();
    match Opening::of(response, session.server.config.limits.result_bytes) {
        Ok(Opening::Messages(messages)) if messages.resumption().is_some() => Attempt::Open(messages),
        // Some answer 200 or 202 with nothing in it.
        Ok(Opening::Messages(_) | Opening::Accepted) | Err(_) => Attempt::Refused,
        Ok(Opening::Refused(_, body)) => refused(session, status, body, had_one),
    }
}

fn refused(session: &Arc<Session>, status: StatusCode, body: Incoming, had_one: bool) -> Attempt {
    session.server.drain_later(body);
    match status {
        // Where there has been a stream, this is about the session.
        StatusCode::NOT_FOUND if had_one && session.has_id() => Attempt::Ended,
        // Only one stream at a time, and the one that broke still counts; or too many requests.
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => Attempt::Failed,
        StatusCode::NOT_IMPLEMENTED => Attempt::Refused,
        status if status.is_client_error() => Attempt::Refused,
        _ => Attempt::Failed,
    }
}

/// Reads a stream to its end. Whether it was worth having.
async fn read(session: &Arc<Session>, messages: &mut Messages) -> bool {
    let mut worth = false;
    loop {
        match poll_fn(|cx| messages.poll_next(cx)).await {
            Ok(frame) => {
                worth = true;
                session.hear(frame);
            }
            Err(Stop::Ended(_)) => return worth,
            Err(Stop::Lost(lost)) => {
                // What a bad message leaves behind is unknown: begin with a new stream.
                tracing::debug!(error = %lost, "a message on the session's own stream was not valid");
                return worth;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
