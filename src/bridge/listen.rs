//! The messages of a `subscriptions/listen` stream (2026-07-28, *Subscriptions*).

use crate::protocol::{
    ListKind, Method, Payload, RequestId, meta,
    splice::{JsonObject, ObjectEdit},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The notifications that a client subscribes to. The client must not receive any other notification on the
/// stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionFilter {
    /// Whether changes of the tool list are requested.
    #[serde(skip_serializing_if = "is_false")]
    pub tools_list_changed: bool,
    /// Whether changes of the prompt list are requested.
    #[serde(skip_serializing_if = "is_false")]
    pub prompts_list_changed: bool,
    /// Whether changes of the resource list are requested.
    #[serde(skip_serializing_if = "is_false")]
    pub resources_list_changed: bool,
    /// The URIs of the resources whose updates are requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_subscriptions: Vec<String>,
    /// The ids of tasks whose status notifications are requested (tasks extension, *Task Status
    /// Notifications*).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub task_ids: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Error: the filter of a `subscriptions/listen` request is invalid, for this reason.
#[derive(Debug, thiserror::Error)]
#[error("params.notifications is not a filter: {0}")]
pub struct InvalidFilter(String);

// === impl SubscriptionFilter ===

impl SubscriptionFilter {
    /// Reads the filter in the parameters of a `subscriptions/listen` request.
    ///
    /// # Errors
    /// [`InvalidFilter`] if `params.notifications` is missing or has a wrong type.
    pub fn read(params: Option<&Payload>) -> Result<Self, InvalidFilter> {
        let missing = || InvalidFilter("it is required".into());
        let raw = params.and_then(|params| params.get("notifications")).ok_or_else(missing)?;
        // The value must be an object: serde would also read an array as the members in their order.
        JsonObject::read(&raw).map_err(|error| InvalidFilter(error.to_string()))?;
        serde_json::from_slice(&raw).map_err(|error| InvalidFilter(error.to_string()))
    }

    /// Whether the subscription includes changes of this list.
    pub fn includes_list(&self, list: ListKind) -> bool {
        match list {
            ListKind::Tools => self.tools_list_changed,
            ListKind::Prompts => self.prompts_list_changed,
            ListKind::Resources => self.resources_list_changed,
        }
    }

    /// Whether the subscription includes updates of this resource: a subscribed resource, or a resource
    /// inside one (2026-07-28, `notifications/resources/updated`: the URI may be that of a sub-resource).
    pub fn includes_resource(&self, uri: &str) -> bool {
        self.resource_subscriptions.iter().any(|subscribed| {
            uri.strip_prefix(&**subscribed).is_some_and(|rest| {
                rest.is_empty() || subscribed.ends_with('/') || rest.starts_with(['/', '?', '#'])
            })
        })
    }
}

/// Builds the `_meta` object with the subscription id, which is the id of the listen request as the client
/// spelled it.
pub fn subscription_meta(id: &RequestId) -> Vec<u8> {
    [br#"{"io.modelcontextprotocol/subscriptionId":"#, &**id.as_bytes(), b"}"].concat()
}

/// Builds the first message of a subscription, which names the accepted part of the filter.
pub fn acknowledged_message(id: &RequestId, accepted: &SubscriptionFilter) -> Bytes {
    let accepted_json = serde_json::to_vec(accepted).expect("a filter is written to memory");
    let meta_json = subscription_meta(id);
    let params = [br#"{"_meta":"#, &*meta_json, br#","notifications":"#, &accepted_json, b"}"].concat();
    crate::dialect::modern::notification(&Method::SubscriptionsAcknowledged, &params)
}

/// Builds a server's notification for this subscription: `params` with the subscription id added to its
/// `_meta`.
pub fn tagged_notification(id: &RequestId, method: &Method, params: Option<&Bytes>) -> Bytes {
    let object = params.and_then(|raw| JsonObject::read(raw).ok());
    let params = match &object {
        None => [br#"{"_meta":"#, &*subscription_meta(id), b"}"].concat().into(),
        Some(object) => {
            let meta_json = match object.get("_meta").map(|raw| JsonObject::read(&raw)) {
                Some(Ok(meta_object)) => {
                    let mut edit = ObjectEdit::new(&meta_object);
                    edit.set(meta::SUBSCRIPTION_ID, id.as_bytes().clone());
                    edit.apply()
                }
                _ => subscription_meta(id).into(),
            };
            let mut edit = ObjectEdit::new(object);
            edit.set("_meta", meta_json);
            crate::protocol::frame::to_single_line(edit.apply())
        }
    };
    crate::dialect::modern::notification(method, &params)
}

/// Builds the last two messages of a subscription that the proxy ends: `notifications/cancelled`, which the
/// cancellation page of the specification requires, and the result, which the subscriptions page requires.
///
/// The result contains the server info, like every result (2026-07-28, *Base Protocol, `_meta`*).
pub fn closing_messages(id: &RequestId, server_info: &[u8]) -> (Bytes, Bytes) {
    let (meta_json, id_bytes) = (subscription_meta(id), &**id.as_bytes());
    let reason_part = br#","reason":"the server is shutting down","_meta":"#;
    let params = [br#"{"requestId":"#, id_bytes, reason_part, &meta_json, b"}"].concat();
    let head = br#"{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":"#;
    let server_info_part = br#","io.modelcontextprotocol/serverInfo":"#;
    let result = [&head[..], id_bytes, server_info_part, server_info, b"}}"].concat();
    (
        crate::dialect::modern::notification(&Method::Cancelled, &params),
        crate::dialect::modern::success_response(id, &result),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_inside_a_subscribed_resource_are_included() {
        let filter = SubscriptionFilter {
            resource_subscriptions: vec!["file:///a".into(), "db://x/".into()],
            ..SubscriptionFilter::default()
        };
        for (uri, wanted) in [
            ("file:///a", true),
            ("file:///a/b", true),
            ("file:///a#1", true),
            ("file:///a?q", true),
            ("db://x/row", true),
            ("file:///ab", false),
            ("file:///", false),
            ("db://x", false),
        ] {
            assert_eq!(filter.includes_resource(uri), wanted, "{uri}");
        }
    }

    #[test]
    fn a_filter_is_an_object() {
        let read = |text: &'static str| {
            SubscriptionFilter::read(Some(&Payload::read(Bytes::from_static(text.as_bytes()))))
        };
        assert!(read(r#"{"notifications":{"x":1}}"#).is_ok());
        for text in
            [r#"{"notifications":[]}"#, r#"{"notifications":[true]}"#, r#"{"notifications":null}"#, "{}"]
        {
            assert!(read(text).is_err(), "{text}");
        }
    }

    fn id(token: &'static str) -> RequestId {
        RequestId::from_token(Bytes::from_static(token.as_bytes())).expect("an id")
    }

    #[test]
    fn the_subscription_id_keeps_its_json_type() {
        for token in ["1", "\"1\"", "9007199254740993"] {
            let text = acknowledged_message(
                &id(token),
                &SubscriptionFilter { tools_list_changed: true, ..SubscriptionFilter::default() },
            );
            let want = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{token}}},"notifications":{{"toolsListChanged":true}}}}}}"#
            );
            assert_eq!(text, want);
        }
    }

    #[test]
    fn a_servers_params_are_tagged_and_otherwise_kept() {
        let params = Bytes::from_static(br#"{ "uri":"file:///a", "x":1e400, "_meta":{"k":1} }"#);
        assert_eq!(
            tagged_notification(&id("7"), &Method::ResourceUpdated, Some(&params)),
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{ "uri":"file:///a", "x":1e400, "_meta":{"k":1,"io.modelcontextprotocol/subscriptionId":7} }}"#
        );
    }

    #[test]
    fn a_filter_of_the_wrong_shape_is_refused() {
        for bad in [r#"{}"#, r#"{"notifications":1}"#, r#"{"notifications":{"toolsListChanged":"yes"}}"#] {
            assert!(
                SubscriptionFilter::read(Some(&Payload::read(Bytes::from_static(bad.as_bytes())))).is_err(),
                "{bad}"
            );
        }
        let good =
            Payload::read(Bytes::from_static(br#"{"notifications":{"toolsListChanged":true,"unknown":1}}"#));
        assert!(SubscriptionFilter::read(Some(&good)).is_ok_and(|filter| filter.tools_list_changed));
    }
}
