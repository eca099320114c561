//! The members of a result that determine its kind.

use super::super::{Error, POLL_INTERVAL, RequestedInput, Task, TaskStatus};
use crate::protocol::{InputRequest, splice::JsonObject};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, time::Duration};

/// The members of a result that determine its kind; others are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResultOutline<'a> {
    #[serde(default, borrow)]
    pub(super) result_type: Option<Cow<'a, str>>,
    task_id: Option<String>,
    status: Option<TaskStatus>,
    status_message: Option<String>,
    poll_interval_ms: Option<u64>,
    ttl_ms: Option<u64>,
    pub(super) result: Option<Box<RawValue>>,
    pub(super) error: Option<Box<RawValue>>,
    input_requests: Option<Box<RawValue>>,
    pub(super) request_state: Option<Box<RawValue>>,
}

// === impl ResultOutline ===

impl ResultOutline<'_> {
    /// Returns the task that the result describes; an error if a required member is missing.
    pub(super) fn task(&self) -> Result<Task, Error> {
        let missing = |what: &str| Error::Invalid(format!("a task without `{what}`"));
        Ok(Task {
            id: self.task_id.clone().ok_or_else(|| missing("taskId"))?,
            status: self.status.ok_or_else(|| missing("status"))?,
            message: self.status_message.clone(),
            poll_interval: self.poll_interval_ms.map_or(POLL_INTERVAL, Duration::from_millis),
            ttl: self.ttl_ms.map(Duration::from_millis),
        })
    }

    /// Returns the input requests of the result, in the server's order; empty if there are none.
    pub(super) fn input_requests(&self) -> Result<Vec<RequestedInput>, Error> {
        let invalid = || Error::Invalid("`inputRequests` is not an object of input requests".to_owned());
        let Some(raw) = &self.input_requests else { return Ok(Vec::new()) };
        let requests = JsonObject::read(&Bytes::from(raw.get().to_owned())).map_err(|_| invalid())?;
        let requested = |(key, raw): (Cow<'_, str>, Bytes)| {
            let method = JsonObject::read(&raw).ok()?.string("method")?;
            Some(RequestedInput { key: key.into_owned(), method, request: InputRequest::from_raw(raw) })
        };
        requests.members().map(|member| requested(member).ok_or_else(invalid)).collect()
    }
}
