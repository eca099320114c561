//! Writes the input requests of a call for a modern client, and validates the client's input responses.

use super::form::{self, invalid_answer};
use crate::{
    dialect::modern::server_info_meta,
    protocol::{
        ErrorObject, InputKind, InputRequest, code,
        splice::{JsonObject, ObjectEdit, array_items},
    },
};
use bytes::Bytes;
use serde_json::Value;

pub use crate::protocol::input_keys::InputKeys;
pub use form::InvalidAnswer;

/// Validates a client's input response. Returns the response for the server: the client's bytes without
/// `resultType`, a member that only the client's era has.
///
/// # Errors
/// [`InvalidAnswer`], which names the invalid member. The input request then stays unanswered.
pub fn check_input_response(input_request: &InputRequest, response: &Bytes) -> Result<Bytes, InvalidAnswer> {
    let object = JsonObject::read(response)
        .map_err(|_| InvalidAnswer { at: None, must: "must be an object".into() })?;
    match input_request.kind() {
        InputKind::Elicitation => check_elicitation(input_request, &object)?,
        InputKind::Sampling => check_sampling(&object)?,
        InputKind::Roots => check_roots(&object)?,
    }
    let mut edit = ObjectEdit::new(&object);
    edit.remove("resultType");
    Ok(edit.apply())
}

/// Checks the response to an elicitation (2026-07-28, *Elicitation, Response Actions*).
fn check_elicitation(input_request: &InputRequest, response: &JsonObject) -> Result<(), InvalidAnswer> {
    match string_member(response, "action")?.as_str() {
        "accept" => {}
        "decline" | "cancel" => return Ok(()),
        _ => return Err(invalid_answer("action", "must be \"accept\", \"decline\" or \"cancel\"")),
    }
    let params = input_request.params().and_then(|params| JsonObject::read(&params).ok());
    let is_form = params.as_ref().is_none_or(|params| match params.get("mode") {
        // Revisions before 2025-11-25 have no `mode`, only forms.
        None => true,
        Some(_) => params.string("mode").as_deref() == Some("form"),
    });
    if !is_form {
        return Ok(());
    }
    let schema = params.and_then(|params| params.get("requestedSchema"));
    form::check_form(schema.as_ref(), unique_member(response, "content")?.as_ref())
}

/// Checks the response to a sampling request (2026-07-28, *Sampling, Result Fields*).
fn check_sampling(response: &JsonObject) -> Result<(), InvalidAnswer> {
    if !matches!(string_member(response, "role")?.as_str(), "user" | "assistant") {
        return Err(invalid_answer("role", "must be \"user\" or \"assistant\""));
    }
    string_member(response, "model")?;
    let content =
        unique_member(response, "content")?.ok_or_else(|| invalid_answer("content", "is required"))?;
    let blocks = match content.first() {
        Some(b'{') => vec![content],
        Some(b'[') => array_items(&content).unwrap_or_default(),
        _ => return Err(invalid_answer("content", "must be a content block or a list of them")),
    };
    let is_block = |block: &Bytes| JsonObject::read(block).is_ok_and(|block| block.string("type").is_some());
    if blocks.iter().all(is_block) {
        return Ok(());
    }
    Err(invalid_answer("content", "must be content blocks, each with its `type`"))
}

/// Checks the response to a roots request (2026-07-28, *Roots, Data Types*).
fn check_roots(response: &JsonObject) -> Result<(), InvalidAnswer> {
    let roots = unique_member(response, "roots")?.ok_or_else(|| invalid_answer("roots", "is required"))?;
    let roots = array_items(&roots).ok_or_else(|| invalid_answer("roots", "must be a list"))?;
    let is_root = |root: &Bytes| JsonObject::read(root).is_ok_and(|root| root.string("uri").is_some());
    match roots.iter().position(|root| !is_root(root)) {
        Some(index) => Err(invalid_answer(&format!("roots[{index}]"), "must be an object with a `uri`")),
        None => Ok(()),
    }
}

/// Returns the response that the server gets to an input request that no client will answer: a result if the
/// kind of request has one for this case, otherwise an error.
///
/// # Errors
/// The error to respond with: `-32603`. The code `-1` of *Sampling, Error Handling* (2025-11-25) would mean
/// that a user had rejected the request.
pub fn cancelled_response(kind: InputKind) -> Result<Bytes, ErrorObject> {
    match kind {
        InputKind::Elicitation => Ok(Bytes::from_static(br#"{"action":"cancel"}"#)),
        InputKind::Sampling | InputKind::Roots => {
            Err(ErrorObject::new(code::INTERNAL_ERROR, "the client did not answer"))
        }
    }
}

/// Builds the error `-32021` for a call that failed because its server had sent an input request for a
/// capability that this client did not declare. `missing` is that capability.
pub fn input_refused_error(missing: &Value) -> ErrorObject {
    ErrorObject::missing_capability("The server sent an input request for an undeclared capability", missing)
}

/// Builds the result that sends input requests to a client (2026-07-28, *InputRequiredResult*). Without input
/// requests the result only tells the client to retry.
pub fn input_required_result<'a>(
    input_requests: impl IntoIterator<Item = (&'a str, &'a InputRequest)>,
    request_state: &str,
    server_info: &[u8],
) -> Vec<u8> {
    let mut out = br#"{"resultType":"input_required""#.to_vec();
    let mut separator: &[u8] = br#","inputRequests":{"#;
    let mut has_requests = false;
    for (key, input_request) in input_requests {
        out.extend_from_slice(separator);
        write_string(key, &mut out);
        out.push(b':');
        out.extend_from_slice(input_request.as_bytes());
        separator = b",";
        has_requests = true;
    }
    if has_requests {
        out.push(b'}');
    }
    out.extend_from_slice(br#","requestState":"#);
    write_string(request_state, &mut out);
    out.extend_from_slice(br#","_meta":"#);
    out.extend_from_slice(&server_info_meta(server_info));
    out.push(b'}');
    out
}

/// Reads a member that is required and must be a string.
fn string_member(response: &JsonObject, key: &str) -> Result<String, InvalidAnswer> {
    let raw = unique_member(response, key)?.ok_or_else(|| invalid_answer(key, "is required"))?;
    serde_json::from_slice(&raw).map_err(|_| invalid_answer(key, "must be a string"))
}

/// Returns a member; `None` if it is absent. A repeated member is an error: readers disagree about which one
/// counts, so the server might read a value that was not checked.
fn unique_member(response: &JsonObject, key: &str) -> Result<Option<Bytes>, InvalidAnswer> {
    match response.members().filter(|(name, _)| name == key).count() {
        0 => Ok(None),
        1 => Ok(response.get(key)),
        _ => Err(invalid_answer(key, "must be given once")),
    }
}

/// Appends the text as a JSON string.
fn write_string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a string is written to memory");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::meta;
    use serde_json::{Value, json};

    const KINDS: [InputKind; 3] = InputKind::ALL;

    fn input_request(kind: InputKind, params: &'static str) -> InputRequest {
        InputRequest::new(kind, Some(&Bytes::from_static(params.as_bytes())))
    }

    /// The error of a response, or the bytes for the server.
    fn checked(question: &InputRequest, answer: &str) -> Result<String, String> {
        check_input_response(question, &Bytes::copy_from_slice(answer.as_bytes()))
            .map(|bytes| String::from_utf8(bytes.to_vec()).expect("utf-8"))
            .map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn an_input_response_reaches_the_server_unchanged() {
        let form = input_request(
            InputKind::Elicitation,
            r#"{"message":"?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}"#,
        );
        let answer = r#"{ "content" : {"n":5.0, "more":1e400}, "action":"accept","x":null }"#;
        assert_eq!(checked(&form, answer).as_deref(), Ok(answer));
        assert_eq!(
            checked(
                &form,
                r#"{"resultType":"complete","action":"accept","content":{"n":1},"_meta":{"a/b":1}}"#
            )
            .as_deref(),
            Ok(r#"{"action":"accept","content":{"n":1},"_meta":{"a/b":1}}"#)
        );
    }

    #[test]
    fn an_elicitation_is_answered_by_one_of_three_actions() {
        let form = input_request(
            InputKind::Elicitation,
            r#"{"requestedSchema":{"type":"object","properties":{"n":{"type":"string"}},"required":["n"]}}"#,
        );
        for fine in [
            r#"{"action":"decline"}"#,
            r#"{"action":"cancel","content":null}"#,
            r#"{"action":"accept","content":{"n":""}}"#,
        ] {
            assert_eq!(checked(&form, fine).as_deref(), Ok(fine));
        }
        for (answer, wrong) in [
            ("12345", "the answer must be an object"),
            ("null", "the answer must be an object"),
            ("{}", "`action` is required"),
            (r#"{"action":1}"#, "`action` must be a string"),
            (r#"{"action":"ok"}"#, r#"`action` must be "accept", "decline" or "cancel""#),
            (r#"{"action":"cancel","\u0061ction":"accept"}"#, "`action` must be given once"),
            (r#"{"action":"accept"}"#, "`content.n` is required"),
            (r#"{"action":"accept","content":[]}"#, "`content` must be an object"),
            (r#"{"action":"accept","content":null}"#, "`content` must be an object"),
            (r#"{"action":"accept","content":{"n":7}}"#, "`content.n` must be a string"),
            (r#"{"action":"accept","content":{"n":""},"content":{}}"#, "`content` must be given once"),
        ] {
            assert_eq!(checked(&form, answer), Err(wrong.to_owned()), "{answer}");
        }
    }

    #[test]
    fn only_a_form_needs_content() {
        let schema = r#""requestedSchema":{"type":"object","required":["n"]}"#;
        for (mode, needs) in [
            ("", true),
            (r#""mode":"form","#, true),
            (r#""mode":"url","#, false),
            (r#""mode":"voice","#, false),
        ] {
            let params = Bytes::from(format!("{{{mode}{schema}}}"));
            let question = InputRequest::new(InputKind::Elicitation, Some(&params));
            assert_eq!(checked(&question, r#"{"action":"accept"}"#).is_err(), needs, "{mode}");
        }
    }

    #[test]
    fn a_sampled_message_has_a_role_a_model_and_content() {
        let question = input_request(InputKind::Sampling, r#"{"messages":[],"maxTokens":1}"#);
        for fine in [
            r#"{"role":"assistant","content":{"type":"text","text":"x"},"model":"m","stopReason":"endTurn"}"#,
            r#"{"role":"user","content":[{"type":"tool_use"},{"type":"vendor"}],"model":""}"#,
            r#"{"role":"assistant","content":[],"model":"m"}"#,
        ] {
            assert_eq!(checked(&question, fine).as_deref(), Ok(fine));
        }
        for (answer, wrong) in [
            (r#"{"action":"decline"}"#, "`role` is required"),
            (r#"{"role":"system","model":"m","content":[]}"#, r#"`role` must be "user" or "assistant""#),
            (r#"{"role":"user","content":[]}"#, "`model` is required"),
            (r#"{"role":"user","model":null,"content":[]}"#, "`model` must be a string"),
            (r#"{"role":"user","model":"m"}"#, "`content` is required"),
            (
                r#"{"role":"user","model":"m","content":"x"}"#,
                "`content` must be a content block or a list of them",
            ),
            (
                r#"{"role":"user","model":"m","content":{}}"#,
                "`content` must be content blocks, each with its `type`",
            ),
            (
                r#"{"role":"user","model":"m","content":["x"]}"#,
                "`content` must be content blocks, each with its `type`",
            ),
        ] {
            assert_eq!(checked(&question, answer), Err(wrong.to_owned()), "{answer}");
        }
    }

    #[test]
    fn roots_are_a_list_of_addresses() {
        let question = InputRequest::new(InputKind::Roots, None);
        for fine in [r#"{"roots":[]}"#, r#"{"roots":[{"uri":"file:///a","name":"A"}]}"#] {
            assert_eq!(checked(&question, fine).as_deref(), Ok(fine));
        }
        for (answer, wrong) in [
            ("{}", "`roots` is required"),
            (r#"{"roots":null}"#, "`roots` must be a list"),
            (r#"{"roots":[{"uri":"file:///a"},{"name":"b"}]}"#, "`roots[1]` must be an object with a `uri`"),
        ] {
            assert_eq!(checked(&question, answer), Err(wrong.to_owned()), "{answer}");
        }
    }

    #[test]
    fn a_cancelled_answer_is_valid() {
        for kind in KINDS {
            match cancelled_response(kind) {
                Ok(answer) => {
                    assert_eq!(
                        check_input_response(&InputRequest::new(kind, None), &answer),
                        Ok(answer.clone())
                    );
                }
                Err(error) => {
                    assert_eq!((error.code(), &*error.message()), (-32603, "the client did not answer"))
                }
            }
        }
        assert!(cancelled_response(InputKind::Elicitation).is_ok());
    }

    #[test]
    fn an_input_required_result_has_the_questions_the_state_and_the_server() {
        let ask = input_request(InputKind::Elicitation, r#"{"message":"?"}"#);
        let roots = InputRequest::new(InputKind::Roots, None);
        let result = input_required_result([("b\"", &ask), ("a", &roots)], "state\n", br#"{"name":"s"}"#);
        assert_eq!(
            String::from_utf8(result).expect("utf-8"),
            concat!(
                r#"{"resultType":"input_required","inputRequests":{"#,
                r#""b\"":{"method":"elicitation/create","params":{"message":"?"}},"a":{"method":"roots/list"}},"#,
                r#""requestState":"state\n","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}"#
            )
        );
    }

    #[test]
    fn a_result_without_input_requests_only_asks_for_a_retry() {
        let result: Value = serde_json::from_slice(&input_required_result([], "s", b"{}")).expect("valid");
        assert_eq!(
            result,
            json!({ "resultType": "input_required", "requestState": "s", "_meta": { meta::SERVER_INFO: {} } })
        );
    }
}
