//! Relays a response to a legacy client: executes the actions that [`ResponseRelay`] decides on.
//!
//! Reads the server's body, edits its bytes where needed, and records the outcome: for the log, for clients
//! that resume the stream (`requester`), and for the session that listens.

use super::{
    deferred_head::{self, UpstreamBody},
    forwarded_request::ForwardedRequest,
    session_stream::SessionStream,
};
use crate::{
    bridge::{
        deny,
        relay::{LossReason, RelayAction, RelayOutcome, RelayPhase, ResponseRelay, ResponseStatus},
    },
    protocol::{ErrorObject, Frame, RequestId, sse::ResponseEditor},
    proxy::{
        AccessSummary, BodyContinuation, BodyPiece,
        keep_alive::LazyTimer,
        reply::{call_error_outcome, record_call_error},
    },
    telemetry::{Limit, RequestOutcome},
    upstream::CallError,
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, future::BoxFuture};
use http::HeaderValue;
use smallvec::SmallVec;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// The body of a response that is being relayed to a legacy client, as a stream of pieces.
pub(super) struct RelayedResponse {
    /// The request to which this is the response.
    pub(super) request: ForwardedRequest,
    relay: ResponseRelay<CallError>,
    body: UpstreamBody,
    /// The outcome for the access log, as far as it is known yet.
    outcome: RequestOutcome,
    timer: LazyTimer,
    /// Removes denied tools from lists, before any other edit.
    tool_filter: Option<Box<ResponseEditor>>,
    /// The edits of the server's bytes, after the removal of denied tools.
    pub(super) edits: StreamEdits,
    /// A future that determines which requests are still owed a response; present during
    /// `RelayPhase::Resolving`.
    unanswered_lookup: Option<BoxFuture<'static, SmallVec<[RequestId; 1]>>>,
    /// Resolves at shutdown. Created on the first wait, because most responses arrive without one.
    stop: Option<BoxFuture<'static, ()>>,
}

/// Edits a response message; returns `None` to leave it unchanged. The second argument is the value of the
/// `Mcp-Session-Id` header of the response.
pub(in crate::proxy) type ResponseEdit = Box<dyn FnMut(&Frame, Option<&HeaderValue>) -> Option<Bytes> + Send>;

/// The edit of the response message on an event stream.
pub(super) struct EditedStream {
    /// The edit of the response message.
    pub(super) edit: ResponseEdit,
    /// The value of the `Mcp-Session-Id` header of the response.
    pub(super) session_id: Option<HeaderValue>,
    /// The parser that finds the response message on the stream.
    pub(super) editor: ResponseEditor,
}

/// The kind of edit that is applied to the relayed bytes.
pub(super) enum StreamEdits {
    None,
    /// The response message on the stream is edited.
    Edited(Box<EditedStream>),
    /// The stream is a session's own GET stream: events about the proxy's calls are removed, and messages of
    /// the proxy are inserted.
    SessionStream(Box<SessionStream>),
}

// === impl RelayedResponse ===

impl RelayedResponse {
    /// Creates the relayed response. `outcome` is the one that its HTTP status shows.
    pub(super) fn new(
        request: ForwardedRequest,
        relay: ResponseRelay<CallError>,
        body: UpstreamBody,
        outcome: RequestOutcome,
        timer: LazyTimer,
    ) -> Self {
        Self {
            request,
            relay,
            body,
            outcome,
            timer,
            tool_filter: None,
            edits: StreamEdits::None,
            unanswered_lookup: None,
            stop: None,
        }
    }

    /// Removes denied tools from every tool list on the stream. `limit` is the maximum length of one event,
    /// in bytes.
    pub(super) fn hide_tools(&mut self, limit: usize) {
        self.tool_filter = Some(Box::new(ResponseEditor::for_all_responses(limit)));
    }

    /// Passes the next event (bytes, end, resumption, shutdown or timeout) to the relay.
    fn poll_next_event(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.relay.phase() {
            RelayPhase::Flowing => match self.body.poll_chunk(cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    let bytes = self.edit(bytes);
                    self.relay.handle_chunk(bytes, self.body.is_over());
                }
                Poll::Ready(Some(Err(error))) => {
                    self.request.mark_failed(&error);
                    self.relay.handle_end(Some(error));
                }
                Poll::Ready(None) => self.relay.handle_end(None),
                Poll::Pending => ready!(self.poll_local(cx)),
            },
            RelayPhase::Resolving => {
                let Some(lookup) = &mut self.unanswered_lookup else { return Poll::Ready(()) };
                let owed = ready!(lookup.poll_unpin(cx));
                self.unanswered_lookup = None;
                self.relay.handle_unanswered(owed);
            }
            RelayPhase::Resuming => match self.body.poll_resumed(cx) {
                Poll::Ready(outcome) => {
                    // The server sends the unfinished event again.
                    if let StreamEdits::Edited(edited) = &mut self.edits {
                        edited.editor.restart_event();
                    }
                    self.tool_filter.iter_mut().for_each(|editor| editor.restart_event());
                    self.relay.handle_resumed(outcome);
                }
                Poll::Pending => ready!(self.poll_local(cx)),
            },
            RelayPhase::Ended => {}
        }
        Poll::Ready(())
    }

    /// Waits for local events while the server is silent: shutdown, a message for a session that listens, the
    /// timer.
    fn poll_local(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stop = self.stop.get_or_insert_with(|| {
            let stopping = self.request.stopping.clone();
            async move { stopping.stopped().await }.boxed()
        });
        if stop.poll_unpin(cx).is_ready() {
            self.relay.handle_shutdown();
            return Poll::Ready(());
        }
        if self.relay.can_insert()
            && let StreamEdits::SessionStream(session) = &mut self.edits
            && let Poll::Ready(message) = session.stream.messages.poll_recv(cx)
        {
            // The sender lives as long as the stream.
            self.relay.handle_own_event(message.expect("the registry keeps its sender"));
            return Poll::Ready(());
        }
        let clock = &self.request.shared.clock;
        let Some(due) = self.relay.poll_timeout(|| clock.now()) else { return Poll::Pending };
        ready!(self.timer.poll_until(cx, due));
        // The timer may fire slightly early.
        self.relay.handle_timeout(clock.now().max(due));
        Poll::Ready(())
    }

    /// Returns the edited form of the server's next bytes; on the last bytes, with everything that the
    /// editors have buffered.
    fn edit(&mut self, bytes: Bytes) -> Bytes {
        let is_over = self.body.is_over();
        let bytes = match &mut self.tool_filter {
            None => bytes,
            Some(editor) => {
                let route = &self.request.shared.route;
                let filtered =
                    editor.feed(bytes, |list| deny::remove_denied_tools(list, |tool| route.is_denied(tool)));
                let rest = if is_over { editor.finish() } else { Bytes::new() };
                if rest.is_empty() { filtered } else { [filtered, rest].concat().into() }
            }
        };
        let (bytes, rest) = match &mut self.edits {
            StreamEdits::None => return bytes,
            StreamEdits::Edited(edited) => {
                let EditedStream { edit, session_id, editor } = &mut **edited;
                let bytes = editor.feed(bytes, |response| edit(response, session_id.as_ref()));
                (bytes, is_over.then(|| editor.finish()))
            }
            StreamEdits::SessionStream(session) => (session.feed(bytes), is_over.then(|| session.finish())),
        };
        let rest = rest.unwrap_or_default();
        if rest.is_empty() { bytes } else { [bytes, rest].concat().into() }
    }

    /// Executes one action of the relay. Returns the piece to send to the client, if the action sends one.
    fn execute(&mut self, action: RelayAction<CallError>) -> Option<BodyPiece> {
        match action {
            RelayAction::Send(bytes) => return Some(BodyPiece::from_bytes(bytes)),
            RelayAction::SendAnswered(bytes, status) => {
                let summary = Some(self.finish_answered(status));
                return Some(BodyPiece { summary, ..BodyPiece::from_bytes(bytes) });
            }
            RelayAction::End(bytes, relay_outcome) => {
                return Some(BodyPiece::last(bytes, self.finish(relay_outcome)));
            }
            RelayAction::Abort(relay_outcome) => {
                let summary = Some(self.finish(relay_outcome));
                return Some(BodyPiece {
                    summary,
                    continuation: BodyContinuation::Abort,
                    ..BodyPiece::end()
                });
            }
            RelayAction::ResolveUnanswered(waiting) => {
                let pending = Arc::clone(&self.request.requester.pending);
                self.unanswered_lookup = Some(async move { pending.still_owed(waiting).await }.boxed());
            }
            RelayAction::Resume(position) => {
                if let Some(body) = self.body.streaming() {
                    body.begin_resume(position);
                }
            }
            RelayAction::KeepForResume(position, waiting) => {
                self.request.requester.save_unfinished(&position, self.relay.earlier_ids(), &waiting);
            }
            RelayAction::Release => self.body.streaming().into_iter().for_each(|body| body.release()),
            RelayAction::Cancel => {
                if let Some(body) = self.body.streaming() {
                    body.cancel("the proxy is shutting down");
                }
            }
            RelayAction::CancelOverdue => {
                self.request.cancel_overdue();
                self.body.mark_answered();
            }
        }
        None
    }

    /// Records that all requests have been answered.
    fn finish_answered(&mut self, status: ResponseStatus) -> AccessSummary {
        self.body.mark_answered();
        self.request.requester.mark_answered();
        self.request.mark_server_finished();
        self.outcome = match status {
            ResponseStatus::Plain => self.outcome,
            ResponseStatus::Error => self.request.requester.error_outcome(),
            ResponseStatus::ToolError => RequestOutcome::ToolError,
        };
        self.request.summarize(self.outcome)
    }

    /// Records the outcome of the response, and returns its access summary.
    fn finish(&mut self, relay_outcome: RelayOutcome<CallError>) -> AccessSummary {
        let (outcome, error) = match relay_outcome {
            RelayOutcome::Completed(status) => return self.finish_answered(status),
            RelayOutcome::Resumable => return self.request.summarize(self.outcome),
            RelayOutcome::Cancelled => return self.request.summarize(RequestOutcome::Disconnected),
            RelayOutcome::Lost(call_error) => {
                // At shutdown the server still works at the call. The body is not marked as answered, so that
                // the server is notified when the body is dropped.
                if !call_error.is_shutdown() {
                    self.body.mark_answered();
                }
                self.request.requester.mark_answered();
                (call_error_outcome(&call_error), call_error.error())
            }
            RelayOutcome::TimedOut(error) => {
                Limit::HeldDeadline.record_hit();
                (RequestOutcome::UpstreamFailed, error)
            }
        };
        self.request.summarize(outcome).with_reason(&error)
    }
}

impl Stream for RelayedResponse {
    type Item = BodyPiece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<BodyPiece>> {
        let this = &mut *self;
        loop {
            while let Some(action) = this.relay.poll_action() {
                if let Some(piece) = this.execute(action) {
                    return Poll::Ready(Some(piece));
                }
            }
            if this.relay.phase() == RelayPhase::Ended {
                return Poll::Ready(None);
            }
            ready!(this.poll_next_event(cx));
        }
    }
}

impl Drop for RelayedResponse {
    /// Reports a disconnect to the relay, which ignores it if the response has ended.
    fn drop(&mut self) {
        self.relay.handle_disconnect();
        while let Some(action) = self.relay.poll_action() {
            drop(self.execute(action));
        }
    }
}

impl LossReason for CallError {
    fn is_connection_loss(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    fn is_shutdown(&self) -> bool {
        matches!(self, Self::Closing)
    }

    fn error(&self) -> ErrorObject {
        record_call_error(self)
    }

    fn unanswered() -> Self {
        Self::Broken("the answer ended without a response".to_owned())
    }

    fn empty() -> Self {
        deferred_head::empty_response_error()
    }

    fn shutdown() -> Self {
        Self::Closing
    }
}
