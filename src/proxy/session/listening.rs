//! Reads a session's GET stream in place of a client that does not listen, while a task runs in the session.
//!
//! A server that asks on that stream, or reports progress there, needs one to send on: without it most drop the message,
//! and the call waits for an answer for ever. What is the task's is told to its call, which has the client asked in
//! `tasks/result` (2025-11-25, *Tasks, Input Required Status*); the rest the client would not have received either.
//! A server may serve one such stream at a time, so the proxy's ends as soon as the client asks for one of its own.

use super::{
    InFlightCalls, SessionKey,
    get_streams::{GetStreams, StreamFollower},
};
use crate::upstream::SessionMessage;
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, task::AbortHandle, time::timeout};

/// How long the call of a task waits until the stream is open: a server may ask first of all.
const OPENING: Duration = Duration::from_millis(100);

/// The reader of one session's stream; ends when dropped.
pub(super) struct StreamReader {
    reading: AbortHandle,
    settled: watch::Receiver<bool>,
}

/// Whether the stream of a session is read by now, by its client or in its place.
pub(in crate::proxy) struct StreamOpening(watch::Receiver<bool>);

// === impl StreamReader ===

impl StreamReader {
    /// Begins to read, in the background.
    pub(super) fn begin(
        route: &Arc<str>,
        in_flight: &Arc<InFlightCalls>,
        streams: &Arc<GetStreams>,
        key: SessionKey,
    ) -> Self {
        let (tell, settled) = watch::channel(false);
        let (route, in_flight) = (Arc::clone(route), Arc::clone(in_flight));
        let reading = tokio::spawn(read(route, in_flight, streams.follow(key), key, Arc::new(tell)));
        Self { reading: reading.abort_handle(), settled }
    }

    pub(super) fn opening(&self) -> StreamOpening {
        StreamOpening(self.settled.clone())
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

// === impl StreamOpening ===

impl StreamOpening {
    /// Waits for the stream, for a moment.
    pub(in crate::proxy) async fn settled(mut self) {
        let _ = timeout(OPENING, self.0.wait_for(|is_settled| *is_settled)).await;
    }
}

async fn read(
    route: Arc<str>,
    in_flight: Arc<InFlightCalls>,
    mut streams: StreamFollower,
    key: SessionKey,
    settled: Arc<watch::Sender<bool>>,
) {
    if streams.current_stream().is_some() {
        settled.send_replace(true);
    }
    loop {
        let reading = streams.take().await;
        // One knows the session as well as another; with the last of them this ends.
        let Some(call) = in_flight.any_of_ours(key) else { return };
        let (route, told, is_open) = (Arc::clone(&route), Arc::clone(&in_flight), Arc::clone(&settled));
        let hear = move |message| match message {
            SessionMessage::Settled => drop(is_open.send_replace(true)),
            SessionMessage::Message(frame) => drop(told.dispatch(&route, key, frame)),
        };
        tokio::select! {
            biased;
            () = streams.client_comes() => {}
            // The server has no such stream, or has lost the session.
            () = call.listen(Box::new(hear)) => return,
        }
        drop(reading);
    }
}
