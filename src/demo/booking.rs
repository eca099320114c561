//! The tool of the demo server that sends an input request: `book_table` elicits a date and a number of
//! people during its call, as a legacy server does (2025-11-25, *Elicitation*): by a request on the stream of
//! the call, which the client answers with a POST.
//!
//! With the argument `seconds`, the tool looks for free tables for that time before the request. Behind the
//! proxy, the call may be a task by then.

use super::server::{InputOutcome, RunningCall};
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::oneshot;

/// The name of the tool.
pub const TOOL_NAME: &str = "book_table";

/// Maximum number of people.
const MAX_PARTY: u64 = 12;

/// One call of `book_table`.
pub(super) struct BookingCall {
    running: RunningCall,
    stage: BookingStage,
}

/// What the call waits for.
enum BookingStage {
    /// Pretends to search for this time.
    Searching(Duration),
    /// Waits for the response to the input request.
    AwaitingInput(oneshot::Receiver<InputOutcome>),
}

// === impl BookingCall ===

impl BookingCall {
    /// Starts a call that searches for this time before the input request.
    pub(super) const fn begin(running: RunningCall, search_time: Duration) -> Self {
        Self { running, stage: BookingStage::Searching(search_time) }
    }

    /// Returns the next event, and the call if more events follow. The events are the input request and then
    /// the response, or only the response. A cancelled call has no response.
    pub(super) async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        let response = tokio::select! {
            () = self.running.stopped() => return None,
            answer = self.stage.wait() => answer,
        };
        let Some(response) = response else {
            let Some((event, receiver)) = self.running.elicit(&elicitation_params()) else {
                let text =
                    "I need a date and a number of people, and your client does not support elicitation.";
                return Some((self.running.response_event(text, true), None));
            };
            self.stage = BookingStage::AwaitingInput(receiver);
            return Some((event, Some(self)));
        };
        let (text, is_error) = booking_result(response);
        Some((self.running.response_event(&text, is_error), None))
    }
}

// === impl BookingStage ===

impl BookingStage {
    /// Waits for the end of the stage; returns the input response if it was awaited.
    async fn wait(&mut self) -> Option<InputOutcome> {
        match self {
            Self::Searching(time) => {
                tokio::time::sleep(*time).await;
                None
            }
            Self::AwaitingInput(receiver) => {
                Some(receiver.await.unwrap_or_else(|_| Err("the session ended".to_owned())))
            }
        }
    }
}

fn elicitation_params() -> Value {
    json!({
        "message": "For which date, and for how many people?",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "date": { "type": "string", "format": "date", "title": "Date" },
                "party": {
                    "type": "integer", "minimum": 1, "maximum": MAX_PARTY, "default": 2,
                    "title": "Party", "description": "Number of people.",
                },
                "seat": {
                    "type": "string", "enum": ["inside", "outside"], "enumNames": ["Inside", "On the terrace"],
                    "title": "Where to sit",
                },
            },
            "required": ["date", "party"],
        },
    })
}

/// The text of the result for an input response, and whether the result is an error.
fn booking_result(response: InputOutcome) -> (String, bool) {
    let response = match response {
        Ok(response) => response,
        Err(reason) => return (format!("The input request failed: {reason}"), true),
    };
    match response["action"].as_str() {
        Some("accept") => {}
        Some("decline") => return ("Nothing was booked.".to_owned(), false),
        _ => return ("Nothing was booked.".to_owned(), false),
    }
    let content = &response["content"];
    let party = content["party"].as_u64().filter(|party| (1..=MAX_PARTY).contains(party));
    let (Some(date), Some(party)) = (content["date"].as_str(), party) else {
        return ("This is not a date and a number of people.".to_owned(), true);
    };
    let seat = match content["seat"].as_str() {
        Some("inside") => ", inside",
        Some("outside") => ", on the terrace",
        _ => "",
    };
    (format!("A table for {party} on {date}{seat} is yours."), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_input_response_has_its_text() {
        for (answer, words, is_error) in [
            (
                json!({ "action": "accept", "content": { "date": "2026-08-01", "party": 4, "seat": "outside" } }),
                "A table for 4 on 2026-08-01, on the terrace is yours.",
                false,
            ),
            (
                json!({ "action": "accept", "content": { "date": "2026-08-01", "party": 2 } }),
                "A table for 2 on 2026-08-01 is yours.",
                false,
            ),
            (json!({ "action": "accept" }), "This is not a date and a number of people.", true),
            (
                json!({ "action": "accept", "content": { "date": "2026-08-01", "party": 13 } }),
                "This is not a date and a number of people.",
                true,
            ),
            (json!({ "action": "decline" }), "Nothing was booked.", false),
            (json!({ "action": "cancel" }), "Nothing was booked.", false),
        ] {
            assert_eq!(booking_result(Ok(answer)), (words.to_owned(), is_error));
        }
        assert!(booking_result(Err("no".into())).1);
    }
}
