//! What our answer says otherwise than the server's, be it an event stream or one document.

use crate::protocol::{Frame, sse::Editor};
use bytes::Bytes;
use http::HeaderValue;

/// What a response becomes, or nothing where it stays as it is. The second is the session that the
/// answer names.
pub(in crate::proxy) type Edit = Box<dyn FnMut(&Frame, Option<&HeaderValue>) -> Option<Bytes> + Send>;

/// An event stream whose response is changed as it goes by.
pub(in crate::proxy) struct Edited {
    edit: Edit,
    in_session: Option<HeaderValue>,
    editor: Editor,
}

/// The response as it goes to the client, where it is one document.
pub(super) fn document(body: Bytes, edit: &mut Edit, in_session: Option<&HeaderValue>) -> Bytes {
    match Frame::parse(body.clone()) {
        Ok(frame) => edit(&frame, in_session).unwrap_or(body),
        Err(_) => body,
    }
}

// === impl Edited ===

impl Edited {
    /// `limit` is for one event, in bytes.
    pub(super) fn new(edit: Edit, in_session: Option<HeaderValue>, limit: usize) -> Self {
        Self { edit, in_session, editor: Editor::new(limit) }
    }

    /// Takes the next chunk; gives what can go on. Nothing is not the end of it.
    pub(super) fn feed(&mut self, chunk: Bytes) -> Bytes {
        self.editor.feed(chunk, |response| (self.edit)(response, self.in_session.as_ref()))
    }

    /// The stream has ended: what was held of it.
    pub(super) fn rest(&mut self) -> Bytes {
        self.editor.rest()
    }

    /// The stream goes on elsewhere, where the event comes again that has not ended.
    pub(super) fn forget(&mut self) {
        self.editor.begin_event();
    }
}
