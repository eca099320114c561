//! Chooses, before anything is sent, how a call of a 2026-07-28 client is handled: driven, or refused. The
//! choice depends on the operator's policy for the tool, and on what the client declared. No other module
//! makes this choice; [`plan_legacy`](super::plan_legacy) makes it for requests of legacy clients.

use crate::{
    dialect::{Call, Caller},
    policy::{Mode, ToolPolicy},
    protocol::{ErrorObject, Method, code, meta},
};
use serde_json::{Value, json};
use std::time::Duration;

/// When a call that the proxy makes, and tracks to its end, becomes a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveMode {
    /// The call never becomes a task: the client waits for the response.
    Inline,
    /// The call never becomes a task; the proxy records whether it would have become one after this time.
    Observe { after: Duration },
    /// The call becomes a task if the server has not responded after this time; at zero, immediately.
    Defer { after: Duration },
    /// If the server has not responded after this time, the client, which does not support tasks, gets a
    /// ticket.
    Ticket { after: Duration },
}

/// Returns how a call of a client of 2026-07-28 is made. [`Mode`] describes the effect of each mode.
///
/// Only `tools/call` ever becomes a task (tasks extension, *Supported Methods*), and only for a client that
/// declares the extension on this very request (*Capability Negotiation*). `ticket_after` is the time after
/// which any other client gets a ticket instead of the result; `None` if it may not get one.
///
/// # Errors
/// The error with which the call is refused before anything is sent.
pub fn plan(
    call: &Call,
    caller: &Caller,
    policy: &ToolPolicy,
    ticket_after: Option<Duration>,
) -> Result<DriveMode, ErrorObject> {
    if call.method != Method::ToolsCall {
        return Ok(DriveMode::Inline);
    }
    if policy.mode == Mode::Deny {
        return Err(denied_error(call.target.as_deref().unwrap_or_default()));
    }
    if let Some(missing) = policy.requires.as_ref().and_then(|required| caller.capabilities.missing(required))
    {
        let tool = call.target.as_deref().unwrap_or_default();
        return Err(ErrorObject::missing_capability(
            format!("The tool {tool} needs capabilities this client did not declare"),
            &missing,
        ));
    }
    match (policy.mode, caller.capabilities.declares_tasks()) {
        (Mode::Auto | Mode::Required | Mode::Always, true) => {
            Ok(DriveMode::Defer { after: deferral_threshold(policy) })
        }
        (Mode::Observe, _) => Ok(DriveMode::Observe { after: policy.after }),
        (Mode::Never | Mode::Deny, _) => Ok(DriveMode::Inline),
        (Mode::Required, false) => Err(tasks_required_error()),
        (Mode::Auto | Mode::Always, false) => {
            Ok(ticket_after.map_or(DriveMode::Inline, |after| DriveMode::Ticket { after }))
        }
    }
}

/// Returns the time after which a call becomes a task: zero for `mode: always`.
pub(super) fn deferral_threshold(policy: &ToolPolicy) -> Duration {
    if policy.mode == Mode::Always { Duration::ZERO } else { policy.after }
}

/// Builds the error `-32021`, which names the tasks extension as the missing capability (tasks extension,
/// *Capability Negotiation*).
pub fn tasks_required_error() -> ErrorObject {
    ErrorObject::missing_capability(
        "This needs the tasks extension, which the client did not declare",
        &tasks_capability(),
    )
}

/// Builds the error for a call of a denied tool: `-32602`, as for an unknown tool (2026-07-28 and 2025-11-25,
/// *Tools, Error Handling*).
pub fn denied_error(tool: &str) -> ErrorObject {
    ErrorObject::new(
        code::INVALID_PARAMS,
        format!("Unknown tool: {tool} is not served on this route (mode: deny)"),
    )
}

/// Returns the client capability that is required for tasks, as JSON.
pub fn tasks_capability() -> Value {
    json!({ "extensions": { meta::TASKS_EXTENSION: {} } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dialect::{Credentials, ExtraHeaders, Principal},
        protocol::{Capabilities, RequestId},
    };
    use bytes::Bytes;
    use expect_test::expect;
    use std::sync::Arc;

    const MODES: [Mode; 6] = Mode::ALL;
    const TICKET: Duration = Duration::from_secs(3);

    fn policy(mode: Mode) -> ToolPolicy {
        ToolPolicy { mode, after: Duration::from_secs(5), ..ToolPolicy::default() }
    }

    fn format_plan(plan: Result<DriveMode, ErrorObject>) -> String {
        match plan {
            Ok(drive) => format!("{drive:?}"),
            Err(error) => format!("refuse {}", error.code()),
        }
    }

    fn call() -> Call {
        Call {
            bytes: Bytes::new(),
            id: RequestId::from_number(1),
            method: Method::ToolsCall,
            params: None,
            target: Some("t".to_owned()),
            progress_token: None,
            log_level: None,
            headers: ExtraHeaders::default(),
            client_info: Default::default(),
            trace: None,
        }
    }

    fn caller(capabilities: Value) -> Caller {
        Caller {
            principal: Principal::ANONYMOUS,
            credentials: Credentials::default(),
            capabilities: Arc::new(
                Capabilities::read(capabilities.to_string().into()).expect("capabilities"),
            ),
            client_info: Default::default(),
            match_headers: None,
            rollout_membership: Default::default(),
        }
    }

    /// Before the bar: whether the client declares tasks. Behind it: the plan without a ticket and with one.
    #[test]
    fn the_plan_of_a_modern_clients_call_in_every_mode() {
        let mut table = String::new();
        for mode in MODES {
            for (declares, capabilities) in [("tasks", tasks_capability()), ("none", json!({}))] {
                let plans = [None, Some(TICKET)].map(|ticket| {
                    format_plan(plan(&call(), &caller(capabilities.clone()), &policy(mode), ticket))
                });
                table +=
                    &format!("{:8} | {declares:5} | {:21} | {}\n", format!("{mode:?}"), plans[0], plans[1]);
            }
        }
        expect![[r#"
            Auto     | tasks | Defer { after: 5s }   | Defer { after: 5s }
            Auto     | none  | Inline                | Ticket { after: 3s }
            Never    | tasks | Inline                | Inline
            Never    | none  | Inline                | Inline
            Always   | tasks | Defer { after: 0ns }  | Defer { after: 0ns }
            Always   | none  | Inline                | Ticket { after: 3s }
            Required | tasks | Defer { after: 5s }   | Defer { after: 5s }
            Required | none  | refuse -32021         | refuse -32021
            Observe  | tasks | Observe { after: 5s } | Observe { after: 5s }
            Observe  | none  | Observe { after: 5s } | Observe { after: 5s }
            Deny     | tasks | refuse -32602         | refuse -32602
            Deny     | none  | refuse -32602         | refuse -32602
        "#]]
        .assert_eq(&table);
    }
}
