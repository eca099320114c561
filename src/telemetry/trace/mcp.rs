//! Span names and attributes of requests and notifications according to the semantic conventions for MCP
//! (github.com/open-telemetry/semantic-conventions-genai, *Semantic conventions for Model Context Protocol*).

use super::{Span, SpanKind, Tracer};
use crate::protocol::{Method, RequestId, TraceContext};

/// The parts of a message that its span shows.
#[derive(Clone, Copy, Debug)]
pub struct MessageAttributes<'a> {
    pub method: &'a str,
    /// The name of the tool or prompt. Other targets are omitted, because they may be secret or of unbounded
    /// number.
    pub target: Option<&'a str>,
    pub id: Option<&'a RequestId>,
}

/// Maximum length of an attribute that the client chooses, in characters.
const SHOWN: usize = 200;

/// Number of digits of a task id that are shown: enough to find it in the log, too few to use the task.
const TASK_TAG_CHARS: usize = 8;

// === impl MessageAttributes ===

impl MessageAttributes<'_> {
    /// Begins a span for the message.
    pub fn begin(self, tracer: &Tracer, kind: SpanKind, parent: Option<&TraceContext>) -> Span {
        let target = self.target_attribute();
        let mut span = tracer.begin(kind, parent, || match target {
            Some((_, name)) => format!("{} {}", shown(self.method), shown(name)),
            None => shown(self.method).to_owned(),
        });
        if span.is_recorded() {
            self.describe(&mut span);
        }
        span
    }

    fn describe(self, span: &mut Span) {
        span.set("mcp.method.name", shown(self.method).to_owned());
        if let Some((key, name)) = self.target_attribute() {
            span.set(key, shown(name).to_owned());
        }
        if self.method == Method::ToolsCall.as_str() {
            span.set("gen_ai.operation.name", "execute_tool");
        }
        if let Some(id) = self.id {
            set_request_id(span, id);
        }
    }

    /// The attribute for the target, and its value.
    fn target_attribute(&self) -> Option<(&'static str, &str)> {
        let key = match self.method {
            "tools/call" => "gen_ai.tool.name",
            "prompts/get" => "gen_ai.prompt.name",
            _ => return None,
        };
        Some((key, self.target?))
    }
}

/// Sets the request id.
pub fn set_request_id(span: &mut Span, id: &RequestId) {
    if let Ok(text) = std::str::from_utf8(id.as_bytes()) {
        span.set("jsonrpc.request.id", shown(text.trim_matches('"')).to_owned());
    }
}

/// The shown part of a task id.
pub fn task_tag(id: &str) -> String {
    id.chars().take(TASK_TAG_CHARS).collect()
}

/// Truncates a text.
fn shown(text: &str) -> &str {
    text.char_indices().nth(SHOWN).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_clients_choose_are_truncated() {
        let long = "ä".repeat(SHOWN + 1);
        assert_eq!(shown(&long), "ä".repeat(SHOWN));
        assert_eq!(shown("tools/call"), "tools/call");
        assert_eq!(task_tag(&"0123456789abcdef".repeat(2)), "01234567");
    }
}
