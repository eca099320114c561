//! Requests and calls of legacy clients over HTTP.

use super::{CallError, ClientSession, Deferral, HttpRequest, HttpResponse, UpstreamEvents};
use crate::protocol::{Frame, Method, RequestId};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::{sync::Arc, time::Instant};

/// A server's side of the sessions of legacy clients over HTTP. The sessions are the server's own, or emulated.
pub trait HttpRelay: Send + Sync {
    /// Forwards one HTTP request of a legacy client, over HTTP unchanged. Dropping the future or the body
    /// before a POST is answered is a disconnect, not a cancellation: the response is read to its end in the
    /// background, within [`UpstreamTimeouts::call`](super::UpstreamTimeouts::call) and
    /// [`UpstreamLimits::departed`](super::UpstreamLimits::departed).
    fn forward(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, CallError>>;

    /// Makes a call as [`Upstream::call`](super::Upstream::call), in a session that a legacy client opened, in
    /// the revision of client and server. The events are the messages on the call's own stream. The client
    /// reads the session's GET stream; messages on the GET stream that concern the call must be given to the
    /// returned [`OffStreamCall`]. The call is not sent again if the server lost the session.
    fn call_in(
        &self,
        session: ClientSession,
        call: NativeCall,
    ) -> (UpstreamEvents, Option<Arc<dyn OffStreamCall>>);

    /// Sends cancellations for these calls of a legacy client in its own session, in the background.
    fn cancel_in(&self, session: ClientSession, calls: &[RequestId], reason: &str);
}

/// A call in the revision of its client and server, sent in the client's own session.
#[derive(Clone, Debug)]
pub struct NativeCall {
    /// As in [`OutgoingCall`](super::OutgoingCall).
    pub id: u64,
    pub method: Method,
    /// The JSON-RPC message with that id. Its progress token may be the client's own.
    pub body: Bytes,
    /// As in [`OutgoingCall`](super::OutgoingCall).
    pub deferral: Option<Deferral>,
}

/// Event on the GET stream of a client's session, which the proxy reads in place of the client.
pub enum GetStreamEvent {
    /// The server has opened the GET stream or refused to.
    Settled,
    /// Message of the server. Pings are answered by the session and not reported.
    Message(Frame),
}

/// A call that may have messages outside its own stream, for the reader of the session's GET stream: some
/// servers send a call's requests and notifications there without naming the call. It is the only call in its
/// client's session, as far as the proxy knows.
pub trait OffStreamCall: Send + Sync {
    /// Whether the server has, or may have, the call and has not finished it.
    fn is_in_flight(&self) -> bool;

    /// Whether the call was abandoned: the server may still execute it.
    fn is_abandoned(&self) -> bool;

    /// Time of the session's last cancellation, if there was one: the server has received the cancellation or
    /// soon will.
    fn cancelled_at(&self) -> Option<Instant>;

    /// Whether this request of the server was sent during the call and is unanswered.
    fn has_open_request(&self, id: &RequestId) -> bool;

    /// Delivers a message of the call. A request that is already open is ignored: a resumed stream may
    /// contain it twice.
    fn receive(self: Arc<Self>, frame: Frame);

    /// Rejects a request that cannot be attributed to this call, in the background.
    fn refuse(self: Arc<Self>, id: &RequestId, reason: &str);

    /// Reads the GET stream of the client's session while the client has none open, and opens the stream
    /// again when it ends. Resolves when the server has no GET stream or the session has ended. `on_event`
    /// receives each event.
    fn listen(self: Arc<Self>, on_event: Box<dyn FnMut(GetStreamEvent) + Send>) -> BoxFuture<'static, ()>;
}
