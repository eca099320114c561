//! What the semantic conventions for MCP have every span say of a request or notification, whoever makes it
//! (github.com/open-telemetry/semantic-conventions-genai, *Semantic conventions for Model Context Protocol*).

use super::{Span, SpanKind, Tracer};
use crate::protocol::{Method, RequestId, TraceContext};

/// One message, as a span names it.
#[derive(Clone, Copy, Debug)]
pub struct MessageAttributes<'a> {
    pub method: &'a str,
    /// The tool's or the prompt's name. Of anything else there may be as many as there are callers, or it may be a
    /// secret: it is not told.
    pub target: Option<&'a str>,
    pub id: Option<&'a RequestId>,
}

/// Characters of what a client has chosen that are told.
const SHOWN: usize = 200;

/// Digits of a task's id that are told: enough to find it in the log, too few to be shown it.
const TASK_TAG_CHARS: usize = 8;

// === impl Message ===

impl MessageAttributes<'_> {
    /// Begins a span for it.
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

    /// The name that it is about, and what that is a name of.
    fn target_attribute(&self) -> Option<(&'static str, &str)> {
        let key = match self.method {
            "tools/call" => "gen_ai.tool.name",
            "prompts/get" => "gen_ai.prompt.name",
            _ => return None,
        };
        Some((key, self.target?))
    }
}

/// Says which request it is, to whoever has answered it.
pub fn set_request_id(span: &mut Span, id: &RequestId) {
    if let Ok(text) = std::str::from_utf8(id.as_bytes()) {
        span.set("jsonrpc.request.id", shown(text.trim_matches('"')).to_owned());
    }
}

/// What is told of a task's id.
pub fn task_tag(id: &str) -> String {
    id.chars().take(TASK_TAG_CHARS).collect()
}

/// The beginning of a text.
fn shown(text: &str) -> &str {
    text.char_indices().nth(SHOWN).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_client_has_chosen_the_beginning_is_told() {
        let long = "ä".repeat(SHOWN + 1);
        assert_eq!(shown(&long), "ä".repeat(SHOWN));
        assert_eq!(shown("tools/call"), "tools/call");
        assert_eq!(task_tag(&"0123456789abcdef".repeat(2)), "01234567");
    }
}
