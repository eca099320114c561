//! Taking up a stream that broke (2025-11-25, *Resumability and Redelivery*).

use super::{
    super::{
        Error,
        http_transport::{EventReader, is_stream},
        message::http_error,
    },
    transport::SessionTransport,
};
use crate::protocol::sse::SseEvent;
use http::StatusCode;
use std::time::Duration;
use tokio::time::sleep;

/// The pause before a stream is taken up, where the server names none.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause never is shorter, so that a server that closes what it has just opened is not besieged:
/// the first where it has brought a message lately, the second where it has not.
const SHORTEST_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Streams in a row that bring nothing before the second applies.
const FRUITLESS: u32 = 5;
/// Attempts in a row that bring no stream, before the call is given up.
const ATTEMPTS: u32 = 5;

/// How far a stream has been read.
#[derive(Default)]
pub(super) struct StreamPosition {
    /// The id of the last event that had one.
    pub(super) last_id: Option<String>,
    /// How long the server wants to be left alone before.
    retry: Option<Duration>,
    /// How often the stream was taken up since it last brought a message.
    fruitless: u32,
}

// === impl Place ===

impl StreamPosition {
    /// Notes an event.
    pub(super) fn advance(&mut self, event: &SseEvent) {
        self.retry = event.retry.or(self.retry);
        if let Some(id) = &event.id {
            self.last_id = Some(id.clone()).filter(|id| !id.is_empty());
        }
        if !event.data.is_empty() {
            self.fruitless = 0;
        }
    }

    /// How long to wait before the stream is taken up. As long as the server wants, and no longer
    /// than somebody at a terminal has patience for, who can end it.
    pub(super) fn pause(&mut self) -> Duration {
        let shortest = SHORTEST_PAUSES[usize::from(self.fruitless >= FRUITLESS)];
        self.fruitless = self.fruitless.saturating_add(1);
        self.retry.unwrap_or(PAUSE).max(shortest)
    }

    /// The rest of the stream, after as long a pause as the server wants.
    ///
    /// # Errors
    /// `lost` for a stream that cannot be taken up; else what became of the attempts.
    pub(super) async fn resume(
        &mut self,
        line: &SessionTransport,
        lost: Error,
    ) -> Result<EventReader, Error> {
        let Some(last_id) = self.last_id.clone() else { return Err(lost) };
        let (mut pause, mut last) = (self.pause(), lost);
        for _ in 0..ATTEMPTS {
            sleep(pause).await;
            let response = match line.open_stream(Some(&last_id)).await {
                Ok(response) => line.check_session(response)?,
                Err(error) => {
                    last = error;
                    pause = (pause * 2).max(PAUSE);
                    continue;
                }
            };
            let status = response.status();
            if status.is_success() && is_stream(&response) {
                return Ok(line.http.events(response.into_body()));
            }
            if !status.is_server_error()
                && !matches!(status, StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS)
            {
                break;
            }
            last = http_error(status, &[]);
            pause = (pause * 2).max(PAUSE);
        }
        Err(last)
    }
}
