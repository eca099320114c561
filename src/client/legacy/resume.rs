//! Resuming a broken stream (2025-11-25, *Resumability and Redelivery*).

use super::{
    super::{
        Error,
        http_transport::{EventReader, is_event_stream},
        message::http_error,
    },
    transport::SessionTransport,
};
use crate::protocol::sse::SseEvent;
use http::StatusCode;
use std::time::Duration;
use tokio::time::sleep;

/// Pause before a stream is resumed, if the server names none.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);
/// Shortest pause, to protect a server that closes streams at once: the first value if the stream has brought
/// a message lately, the second after [`MAX_EMPTY_RESUMPTIONS`].
const SHORTEST_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Resumptions in a row without a message before the second value of [`SHORTEST_PAUSES`] applies.
const MAX_EMPTY_RESUMPTIONS: u32 = 5;
/// Failed attempts in a row to open a stream, after which the call fails.
const ATTEMPTS: u32 = 5;

/// Position in a stream, from which it can be resumed.
#[derive(Default)]
pub(super) struct StreamPosition {
    /// The id of the last event that had one.
    pub(super) last_id: Option<String>,
    /// The server's `retry` interval.
    retry: Option<Duration>,
    /// Resumptions since the stream last brought a message.
    empty_resumptions: u32,
}

// === impl StreamPosition ===

impl StreamPosition {
    /// Records an event that was received.
    pub(super) fn advance(&mut self, event: &SseEvent) {
        self.retry = event.retry.or(self.retry);
        if let Some(id) = &event.id {
            self.last_id = Some(id.clone()).filter(|id| !id.is_empty());
        }
        if !event.data.is_empty() {
            self.empty_resumptions = 0;
        }
    }

    /// Returns the pause before the stream is resumed, and counts the resumption. The server's interval has
    /// no upper bound, because the user at the terminal can interrupt the pause.
    pub(super) fn next_pause(&mut self) -> Duration {
        let shortest = SHORTEST_PAUSES[usize::from(self.empty_resumptions >= MAX_EMPTY_RESUMPTIONS)];
        self.empty_resumptions = self.empty_resumptions.saturating_add(1);
        self.retry.unwrap_or(DEFAULT_PAUSE).max(shortest)
    }

    /// Resumes the stream, after a pause.
    ///
    /// # Errors
    /// `error` if the stream cannot be resumed; otherwise the error of the last attempt.
    pub(super) async fn resume(
        &mut self,
        transport: &SessionTransport,
        error: Error,
    ) -> Result<EventReader, Error> {
        let Some(last_id) = self.last_id.clone() else { return Err(error) };
        let (mut pause, mut last_error) = (self.next_pause(), error);
        for _ in 0..ATTEMPTS {
            sleep(pause).await;
            let response = match transport.open_stream(Some(&last_id)).await {
                Ok(response) => transport.check_session(response)?,
                Err(error) => {
                    last_error = error;
                    pause = (pause * 2).max(DEFAULT_PAUSE);
                    continue;
                }
            };
            let status = response.status();
            if status.is_success() && is_event_stream(&response) {
                return Ok(transport.http.events(response.into_body()));
            }
            if !status.is_server_error()
                && !matches!(status, StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS)
            {
                break;
            }
            last_error = http_error(status, &[]);
            pause = (pause * 2).max(DEFAULT_PAUSE);
        }
        Err(last_error)
    }
}
