//! What a peer says it can do: raw, and as flags.

use super::Method;
use bytes::Bytes;
use serde_json::Value;

/// The capabilities a client declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    raw: Bytes,
    legacy: Bytes,
    flags: Flags,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flags {
    elicitation_form: bool,
    elicitation_url: bool,
    sampling: bool,
    roots: bool,
    tasks: bool,
}

/// The bytes are not an object of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("capabilities must be an object")]
pub struct NotCapabilities;

impl Capabilities {
    /// Reads a client's `capabilities` object.
    pub fn read(raw: Bytes) -> Result<Self, NotCapabilities> {
        let _ = raw;
        todo!()
    }

    /// The object exactly as it was declared.
    pub fn as_bytes(&self) -> &Bytes {
        &self.raw
    }

    /// What a legacy server is told on the client's behalf: the same object without what the proxy
    /// takes care of itself (the tasks extension; `extensions` too where nothing else is in it).
    /// Two clients with equal bytes here can share sessions.
    pub fn legacy(&self) -> &Bytes {
        &self.legacy
    }

    /// Whether the client speaks the tasks extension (SEP-2663).
    pub fn declares_tasks(&self) -> bool {
        self.flags.tasks
    }

    /// Whether a server may ask this client anything.
    pub fn can_be_asked(&self) -> bool {
        let Flags { elicitation_form, elicitation_url, sampling, roots, .. } = self.flags;
        elicitation_form || elicitation_url || sampling || roots
    }

    /// What the client would have had to declare to be asked this, in the shape of
    /// `requiredCapabilities` (`{"sampling":{}}`, `{"elicitation":{"url":{}}}`), or `None` where it
    /// did. `params` decides: an elicitation of mode `url` needs `elicitation.url`; `{}` declares
    /// form only; sampling with `tools` needs `sampling.tools`; with `includeContext` other than
    /// `none`, nothing more (it is a hint). A method that is no question needs nothing.
    pub fn missing_for(&self, method: &Method, params: Option<&Bytes>) -> Option<Value> {
        let _ = (method, params);
        todo!()
    }

    /// The part of `required` (an object of objects, any depth) the client did not declare, or
    /// `None`. `{"elicitation":{"form":{}}}` is satisfied by `"elicitation":{}`.
    pub fn missing(&self, required: &Value) -> Option<Value> {
        let _ = required;
        todo!()
    }
}
