//! Taking up a call's response stream that broke (2025-11-25, *Resumability and Redelivery*).

use http::StatusCode;
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

use super::{
    Lost,
    messages::{Messages, Opening, Resumption},
    peer,
    session::Session,
};

/// The pause before a stream is taken up, where the server named none.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause never is shorter, so that a server that closes what it has just opened is not besieged:
/// the first where it has brought a message lately, the second where it has not.
const SHORTEST_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Streams in a row that bring nothing before the second applies.
const FRUITLESS: u32 = 5;
/// Attempts in a row that bring no stream, before the call is given up.
const ATTEMPTS: u32 = 5;
/// The longest pause: also a server that names a longer one is asked after this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Waits as long as the server wants, and asks for what followed the last event.
///
/// # Errors
/// [`Lost::SessionEnded`], [`Lost::Unauthorized`], or [`Lost::Broken`] where the server has nothing
/// more to give, or cannot be reached for a while.
pub(super) async fn resume(session: Arc<Session>, mut from: Resumption) -> Result<Messages, Lost> {
    let shortest = SHORTEST_PAUSES[usize::from(from.fruitless >= FRUITLESS)];
    let mut pause = from.retry.unwrap_or(PAUSE).clamp(shortest, LONGEST_PAUSE);
    from.fruitless = from.fruitless.saturating_add(1);
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        sleep(pause).await;
        match attempt(&session, &from).await? {
            Ok(messages) => return Ok(messages),
            Err(why) => last = why,
        }
        pause = (pause * 2).clamp(PAUSE, LONGEST_PAUSE);
    }
    Err(Lost::Broken(format!("its stream could not be taken up again: {last}")))
}

/// One attempt; the inner error is worth another.
async fn attempt(session: &Session, from: &Resumption) -> Result<Result<Messages, String>, Lost> {
    let response = match session.get(from.last_id.as_deref()).await {
        Ok(response) => response,
        Err(lost) => return Ok(Err(lost.to_string())),
    };
    let (head, body) = match Opening::of(response, session.peer.config.limits.result_bytes)? {
        Opening::Messages(mut messages) => {
            messages.go_on_from(from.clone());
            return Ok(Ok(messages));
        }
        Opening::Accepted => return Err(Lost::Broken("its stream cannot be taken up again".to_owned())),
        Opening::Refused(head, body) => (head, body),
    };
    if head.status == StatusCode::NOT_FOUND && session.has_id() {
        return Err(Lost::SessionEnded);
    }
    let lost = peer::refused(head.status, &head.headers, &peer::error_body(body).await);
    if head.status.is_server_error()
        || matches!(head.status, StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS)
    {
        return Ok(Err(lost.to_string()));
    }
    Err(match lost {
        Lost::Unauthorized { .. } | Lost::Forbidden { .. } => lost,
        other => Lost::Broken(format!("its stream could not be taken up again: {other}")),
    })
}
