//! Reads a session's GET stream in place of a client that does not listen, while a task runs in the session.
//!
//! Some servers send input requests and progress notifications of a call on the session's GET stream. Without
//! an open stream most of them drop the message, and the call waits forever for an input response. Messages
//! of the task are passed to its call, which forwards input requests in `tasks/result` (2025-11-25, *Tasks,
//! Input Required Status*). Other messages are dropped: a client that does not listen would not receive them
//! over a direct connection either. A server may allow only one GET stream at a time, so the proxy closes its
//! own as soon as the client requests one.

use super::{
    InFlightCalls, SessionKey,
    get_streams::{GetStreams, StreamFollower},
};
use crate::upstream::GetStreamEvent;
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, task::AbortHandle, time::timeout};

/// How long the call of a task waits until the GET stream is open: the server's first message may be an input
/// request on that stream.
const OPEN_TIMEOUT: Duration = Duration::from_millis(100);

/// A background task that reads one session's GET stream while its client does not; stopped when dropped.
pub(super) struct StreamReader {
    reader: AbortHandle,
    /// Whether the stream is open, or it is known that the server has none.
    settled: watch::Receiver<bool>,
}

/// Signals when the GET stream of a session is open, by its client or in the client's place, or when it is
/// known that the server has none.
pub(in crate::proxy) struct StreamOpening(watch::Receiver<bool>);

// === impl StreamReader ===

impl StreamReader {
    /// Starts to read the session's stream in the background. `route` is for the log.
    pub(super) fn begin(
        route: &Arc<str>,
        in_flight: &Arc<InFlightCalls>,
        streams: &Arc<GetStreams>,
        key: SessionKey,
    ) -> Self {
        let (sender, settled) = watch::channel(false);
        let (route, in_flight) = (Arc::clone(route), Arc::clone(in_flight));
        let reader = tokio::spawn(read_stream(route, in_flight, streams.follow(key), key, Arc::new(sender)));
        Self { reader: reader.abort_handle(), settled }
    }

    /// Whether the server has refused the stream, or the session has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.reader.is_finished()
    }

    /// A handle to wait until the stream is open.
    pub(super) fn opening(&self) -> StreamOpening {
        StreamOpening(self.settled.clone())
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

// === impl StreamOpening ===

impl StreamOpening {
    /// Waits until the stream is open or it is known that the server has none; at most [`OPEN_TIMEOUT`].
    pub(in crate::proxy) async fn wait(mut self) {
        let _ = timeout(OPEN_TIMEOUT, self.0.wait_for(|is_settled| *is_settled)).await;
    }
}

/// Reads the session's stream whenever its client does not, until the session has no proxy call, or the
/// server has no such stream.
async fn read_stream(
    route: Arc<str>,
    in_flight: Arc<InFlightCalls>,
    mut streams: StreamFollower,
    key: SessionKey,
    settled: Arc<watch::Sender<bool>>,
) {
    loop {
        settled.send_replace(streams.current_stream().is_some());
        let guard = streams.take_over().await;
        settled.send_replace(false);
        // Any proxy call can read the session's stream; without one there is nothing to read for.
        let Some(call) = in_flight.any_proxy_call(key) else { return };
        let (route, calls, settled_sender) =
            (Arc::clone(&route), Arc::clone(&in_flight), Arc::clone(&settled));
        let handle_message = move |message| match message {
            GetStreamEvent::Settled => drop(settled_sender.send_replace(true)),
            GetStreamEvent::Message(frame) => drop(calls.dispatch(&route, key, frame)),
        };
        tokio::select! {
            biased;
            () = streams.wait_for_client() => {}
            // The server has no such stream, or has lost the session.
            () = call.listen(Box::new(handle_message)) => return,
        }
        drop(guard);
    }
}
