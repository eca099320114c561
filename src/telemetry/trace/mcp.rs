//! Span names and attributes of requests and notifications according to the semantic conventions for MCP
//! (github.com/open-telemetry/semantic-conventions-genai, *Semantic conventions for Model Context Protocol*).

use super::{Span, SpanKind, Tracer};
use crate::protocol::{Method, RequestId, TraceContext};

/// The parts of a JSON-RPC message that become attributes of its span.
#[derive(Clone, Copy, Debug)]
pub struct MessageAttributes<'a> {
    pub method: &'a str,
    /// The name of the tool or prompt. Other targets are omitted, because they may be secret or of unbounded
    /// number.
    pub target: Option<&'a str>,
    pub id: Option<&'a RequestId>,
}

/// Maximum length of an attribute whose value a client chooses, in characters.
const MAX_ATTRIBUTE_CHARS: usize = 200;

/// Number of digits of a task id that a span shows: enough to find the task in the log, too few to use it.
const TASK_TAG_CHARS: usize = 8;

// === impl MessageAttributes ===

impl MessageAttributes<'_> {
    /// Begins a span for the message.
    pub fn begin_span(self, tracer: &Tracer, kind: SpanKind, parent: Option<&TraceContext>) -> Span {
        let target = self.target_attribute();
        let mut span = tracer.begin(kind, parent, || match target {
            Some((_, name)) => format!("{} {}", truncate(self.method), truncate(name)),
            None => truncate(self.method).to_owned(),
        });
        if span.is_recorded() {
            self.set_attributes(&mut span);
        }
        span
    }

    /// Sets the attributes of the span.
    fn set_attributes(self, span: &mut Span) {
        span.set("mcp.method.name", truncate(self.method).to_owned());
        if let Some((key, name)) = self.target_attribute() {
            span.set(key, truncate(name).to_owned());
        }
        if self.method == Method::ToolsCall.as_str() {
            span.set("gen_ai.operation.name", "execute_tool");
        }
        if let Some(id) = self.id {
            set_request_id(span, id);
        }
    }

    /// The name of the attribute for the target, and its value; `None` if the target is omitted.
    fn target_attribute(&self) -> Option<(&'static str, &str)> {
        let key = match self.method {
            "tools/call" => "gen_ai.tool.name",
            "prompts/get" => "gen_ai.prompt.name",
            _ => return None,
        };
        Some((key, self.target?))
    }
}

/// Sets the attribute `jsonrpc.request.id`.
pub fn set_request_id(span: &mut Span, id: &RequestId) {
    if let Ok(text) = std::str::from_utf8(id.as_bytes()) {
        span.set("jsonrpc.request.id", truncate(text.trim_matches('"')).to_owned());
    }
}

/// The beginning of a task id, as spans show it.
pub fn task_tag(id: &str) -> String {
    id.chars().take(TASK_TAG_CHARS).collect()
}

/// Truncates an attribute value to the maximum length.
fn truncate(text: &str) -> &str {
    text.char_indices().nth(MAX_ATTRIBUTE_CHARS).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_clients_choose_are_truncated() {
        let long = "ä".repeat(MAX_ATTRIBUTE_CHARS + 1);
        assert_eq!(truncate(&long), "ä".repeat(MAX_ATTRIBUTE_CHARS));
        assert_eq!(truncate("tools/call"), "tools/call");
        assert_eq!(task_tag(&"0123456789abcdef".repeat(2)), "01234567");
    }
}
