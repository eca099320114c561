//! Chooses, before anything is sent, what is to become of the call of a 2026-07-28 client: by what
//! the operator wants of the tool and what the client declared. (Calls of older clients pass as
//! bytes, and become tasks in `proxy::legacy`.)

use crate::{
    dialect::{Call, Caller},
    policy::{Mode, Treatment},
    protocol::{ErrorObject, Method, meta},
};
use serde_json::{Value, json};
use std::time::Duration;

/// What is to become of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Held until the server answers.
    Hold,
    /// Held, and recorded as what would have become a task after this long.
    Observe { after: Duration },
    /// A task if the server has not answered after this long; at once where it is nothing.
    Defer { after: Duration },
    /// Refused before anything is sent: 400 with this error.
    Refuse(ErrorObject),
}

/// The plan for `call`. What each mode means is said at [`Mode`].
///
/// Only `tools/call` ever becomes a task (tasks extension, *Supported Methods*), and only for a
/// client that declares the extension on this very request (*Capability Negotiation*).
pub fn plan(call: &Call, caller: &Caller, treatment: &Treatment) -> Plan {
    if call.method != Method::ToolsCall {
        return Plan::Hold;
    }
    if let Some(missing) =
        treatment.requires.as_ref().and_then(|required| caller.capabilities.missing(required))
    {
        let tool = call.target.as_deref().unwrap_or_default();
        return Plan::Refuse(ErrorObject::missing_capability(
            format!("The tool {tool} needs capabilities this client did not declare"),
            &missing,
        ));
    }
    match (treatment.mode, caller.capabilities.declares_tasks()) {
        (Mode::Auto | Mode::Required, true) => Plan::Defer { after: treatment.after },
        (Mode::Always, true) => Plan::Defer { after: Duration::ZERO },
        (Mode::Observe, _) => Plan::Observe { after: treatment.after },
        (Mode::Required, false) => Plan::Refuse(tasks_required()),
        (Mode::Auto | Mode::Always, false) | (Mode::Never, _) => Plan::Hold,
    }
}

/// `-32021` naming the tasks extension (tasks extension, *Capability Negotiation*).
pub fn tasks_required() -> ErrorObject {
    ErrorObject::missing_capability(
        "This needs the tasks extension, which the client did not declare",
        &tasks(),
    )
}

/// The capability a client needs to be given a task.
pub fn tasks() -> Value {
    json!({ "extensions": { meta::TASKS_EXTENSION: {} } })
}
