//! YAML as a tree with source positions.
//!
//! The parser supports only the features that a configuration needs: strings, lists, and mappings with string
//! keys. Anchors and aliases are supported; tags, merge keys and multiple documents are rejected by name. A
//! duplicate key is a problem.

use super::{
    interpolation::InterpolatedText,
    problem::{Problem, SourceSpan},
};
use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use std::collections::HashMap;

/// Maximum size of a configuration, in bytes.
pub const MAX_FILE_BYTES: u64 = 4 << 20;
/// Maximum nesting depth. A configuration needs seven levels.
const MAX_DEPTH: usize = 64;
/// Maximum number of nodes, including those repeated by aliases; bounds the memory that "billion laughs"
/// files take.
const MAX_NODES: usize = 100_000;

/// A value of the configuration file, and the position where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub span: SourceSpan,
    pub value: NodeValue,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NodeValue {
    /// A scalar. `is_plain` is set for unquoted text, which YAML may read as a number, a boolean or null.
    Scalar {
        text: String,
        is_plain: bool,
        origin: TextOrigin,
    },
    List(Vec<Node>),
    Map(Vec<MapEntry>),
}

/// Origin of the text of a scalar.
#[derive(Clone, Debug, PartialEq)]
pub enum TextOrigin {
    /// The text is literal.
    Literal,
    /// The text was made from variables.
    Variables(Box<InterpolatedText>),
    /// A variable could not be replaced, which has been reported.
    Invalid,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MapEntry {
    pub key: String,
    pub key_span: SourceSpan,
    pub node: Node,
}

/// The type of a scalar in YAML's core schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarType {
    Null,
    Bool(bool),
    Number,
    Text,
}

/// Parses one document. Recoverable problems are appended to `problems`; `None` if the text is not YAML, or
/// is empty.
pub fn parse(text: &str, problems: &mut Vec<Problem>) -> Option<Node> {
    let mut reader =
        YamlReader { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0, problems };
    match reader.read_document() {
        Ok(node) => node,
        Err(FatalProblem(mut problem)) => {
            if stops_at_variable(text, problem.span) {
                problem.message += "; inside `{ }` and `[ ]` quote a variable, as in `\"${NAME}\"`";
            }
            problems.push(problem);
            None
        }
    }
}

/// Whether the position is that of the brace of a `${`, which begins a mapping inside `{ }` and `[ ]`.
fn stops_at_variable(text: &str, span: SourceSpan) -> bool {
    let SourceSpan::File { line, column } = span else { return false };
    let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    line.chars().skip(column.saturating_sub(2)).take(2).eq("${".chars())
}

/// A problem that ends parsing.
struct FatalProblem(Problem);

struct YamlReader<'i, 'p> {
    parser: Parser<'i, saphyr_parser::StrInput<'i>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    problems: &'p mut Vec<Problem>,
}

// === impl Node ===

impl Node {
    /// Creates a text that is not from a file, such as the value of a flag.
    pub fn text(span: SourceSpan, text: &str) -> Self {
        Self {
            span,
            value: NodeValue::Scalar { text: text.to_owned(), is_plain: false, origin: TextOrigin::Literal },
        }
    }

    /// Creates a list.
    pub fn list(span: SourceSpan, items: impl IntoIterator<Item = Self>) -> Self {
        Self { span, value: NodeValue::List(items.into_iter().collect()) }
    }

    /// Creates an empty mapping.
    pub fn empty_map(span: SourceSpan) -> Self {
        Self { span, value: NodeValue::Map(Vec::new()) }
    }

    /// Whether the node is a mapping.
    pub const fn is_map(&self) -> bool {
        matches!(self.value, NodeValue::Map(_))
    }

    /// Returns the position and the items of a list; `None` if this is not a list.
    pub fn items(&self) -> Option<(SourceSpan, &[Self])> {
        let NodeValue::List(items) = &self.value else { return None };
        Some((self.span, items))
    }

    /// Returns the items of a list, to change them; `None` if this is not a list.
    pub fn items_mut(&mut self) -> Option<&mut Vec<Self>> {
        let NodeValue::List(items) = &mut self.value else { return None };
        Some(items)
    }

    /// Returns the value of a key, to change it; `None` if the key is absent, or if this is not a mapping.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let NodeValue::Map(entries) = &mut self.value else { return None };
        entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
    }

    /// Sets the value of a key. Does nothing if this is not a mapping; that is reported when the node is
    /// read.
    pub fn set(&mut self, key: &str, node: Self) {
        if let Some(existing) = self.get_mut(key) {
            *existing = node;
        } else if let NodeValue::Map(entries) = &mut self.value {
            entries.push(MapEntry { key: key.to_owned(), key_span: node.span, node });
        }
    }

    /// Returns the value of a key, after inserting `node` if the key is absent. `None` if this is not a
    /// mapping.
    pub fn get_or_insert(&mut self, key: &str, node: Self) -> Option<&mut Self> {
        if self.get_mut(key).is_none() {
            self.set(key, node);
        }
        self.get_mut(key)
    }

    /// Returns the type of the node, for error messages.
    pub fn type_name(&self) -> &'static str {
        match &self.value {
            NodeValue::List(_) => "a list",
            NodeValue::Map(_) => "a mapping",
            NodeValue::Scalar { .. } => match self.scalar_type() {
                Some(ScalarType::Null) => "nothing",
                Some(ScalarType::Bool(_)) => "true or false",
                Some(ScalarType::Number) => "a number",
                Some(ScalarType::Text) | None => "a string",
            },
        }
    }

    /// Returns the type of a scalar in YAML's core schema; `None` for lists and mappings.
    pub fn scalar_type(&self) -> Option<ScalarType> {
        let NodeValue::Scalar { text, is_plain, .. } = &self.value else { return None };
        if !is_plain {
            return Some(ScalarType::Text);
        }
        Some(match text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => ScalarType::Null,
            "true" | "True" | "TRUE" => ScalarType::Bool(true),
            "false" | "False" | "FALSE" => ScalarType::Bool(false),
            text if is_number(text) => ScalarType::Number,
            _ => ScalarType::Text,
        })
    }

    /// Returns the text of a scalar, whatever its type, with variables replaced.
    pub fn scalar_text(&self) -> Option<&str> {
        match &self.value {
            NodeValue::Scalar { text, .. } => Some(text),
            NodeValue::List(_) | NodeValue::Map(_) => None,
        }
    }

    /// Returns the original form of a text with variables; `None` for other nodes.
    pub fn interpolation(&self) -> Option<&InterpolatedText> {
        match &self.value {
            NodeValue::Scalar { origin: TextOrigin::Variables(interpolated), .. } => Some(interpolated),
            NodeValue::Scalar { origin: TextOrigin::Literal | TextOrigin::Invalid, .. }
            | NodeValue::List(_)
            | NodeValue::Map(_) => None,
        }
    }

    /// Returns the text of a scalar as written, with variables instead of their values.
    pub fn as_written(&self) -> Option<&str> {
        self.interpolation().map_or_else(|| self.scalar_text(), |given| Some(&given.written))
    }

    /// Whether a variable in the text could not be replaced, which has been reported.
    pub const fn is_invalid(&self) -> bool {
        matches!(self.value, NodeValue::Scalar { origin: TextOrigin::Invalid, .. })
    }

    fn count_nodes(&self) -> usize {
        1 + match &self.value {
            NodeValue::Scalar { .. } => 0,
            NodeValue::List(items) => items.iter().map(Self::count_nodes).sum(),
            NodeValue::Map(entries) => entries.iter().map(|entry| entry.node.count_nodes()).sum(),
        }
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && (digits.parse::<f64>().is_ok()
            || digits.strip_prefix("0x").is_some_and(|hex| u64::from_str_radix(hex, 16).is_ok())
            || digits.strip_prefix("0o").is_some_and(|octal| u64::from_str_radix(octal, 8).is_ok()))
}

// === impl YamlReader ===

impl<'i> YamlReader<'i, '_> {
    fn next_event(&mut self) -> Result<(Event<'i>, SourceSpan), FatalProblem> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, source_span(span))),
            Some(Err(error)) => {
                let span = SourceSpan::File { line: error.marker().line(), column: error.marker().col() + 1 };
                Err(FatalProblem(Problem::new(span, format!("not valid YAML: {}", error.info()))))
            }
            None => Err(FatalProblem(Problem::new(
                SourceSpan::Whole,
                "not valid YAML: unexpected end of the file",
            ))),
        }
    }

    fn read_document(&mut self) -> Result<Option<Node>, FatalProblem> {
        let mut root = None;
        loop {
            match self.next_event()? {
                (Event::StreamEnd, _) => return Ok(root),
                (Event::StreamStart | Event::DocumentEnd | Event::Nothing, _) => {}
                (Event::DocumentStart(_), span) if root.is_some() => {
                    return Err(FatalProblem(Problem::new(
                        span,
                        "a second YAML document; a file holds one configuration",
                    )));
                }
                (Event::DocumentStart(_), _) => {
                    let event = self.next_event()?;
                    root = Some(self.read_node(event, 0)?);
                }
                (event, span) => {
                    return Err(FatalProblem(Problem::new(span, format!("unexpected {event:?}"))));
                }
            }
        }
    }

    fn read_node(
        &mut self,
        (event, span): (Event<'i>, SourceSpan),
        depth: usize,
    ) -> Result<Node, FatalProblem> {
        self.add_nodes(1, span)?;
        if depth > MAX_DEPTH {
            return Err(FatalProblem(Problem::new(span, format!("nested deeper than {MAX_DEPTH} levels"))));
        }
        let (anchor, tag, value) = match event {
            Event::Alias(anchor) => return self.resolve_alias(anchor, span),
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = matches!(style, ScalarStyle::Plain);
                (
                    anchor,
                    tag,
                    NodeValue::Scalar { text: text.into_owned(), is_plain, origin: TextOrigin::Literal },
                )
            }
            Event::SequenceStart(anchor, tag) => (anchor, tag, NodeValue::List(self.read_list(depth)?)),
            Event::MappingStart(anchor, tag) => (anchor, tag, NodeValue::Map(self.read_map(depth)?)),
            event => return Err(FatalProblem(Problem::new(span, format!("unexpected {event:?}")))),
        };
        if let Some(tag) = tag {
            self.problems.push(Problem::new(
                span,
                format!("the tag `{}{}` is not supported; remove it", tag.handle, tag.suffix),
            ));
        }
        let node = Node { span, value };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// Returns a copy of the anchored node. Its problems are reported at the anchor's position.
    fn resolve_alias(&mut self, anchor: usize, span: SourceSpan) -> Result<Node, FatalProblem> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err(FatalProblem(Problem::new(span, "an alias within the value that it refers to")));
        };
        self.add_nodes(node.count_nodes(), span)?;
        Ok(node)
    }

    fn read_list(&mut self, depth: usize) -> Result<Vec<Node>, FatalProblem> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                (Event::SequenceEnd, _) => return Ok(items),
                event => items.push(self.read_node(event, depth + 1)?),
            }
        }
    }

    fn read_map(&mut self, depth: usize) -> Result<Vec<MapEntry>, FatalProblem> {
        let mut entries: Vec<MapEntry> = Vec::new();
        loop {
            let event = self.next_event()?;
            if matches!(event, (Event::MappingEnd, _)) {
                return Ok(entries);
            }
            let key = self.read_node(event, depth + 1)?;
            let event = self.next_event()?;
            let node = self.read_node(event, depth + 1)?;
            let NodeValue::Scalar { text, is_plain, .. } = key.value else {
                self.problems
                    .push(Problem::new(key.span, format!("a key must be a string, not {}", key.type_name())));
                continue;
            };
            if is_plain && text == "<<" {
                self.problems.push(Problem::new(
                    key.span,
                    "merge keys (`<<`) are not supported; write the keys out, or use an alias for the whole value",
                ));
                continue;
            }
            if let Some(first) = entries.iter().find(|entry| entry.key == text) {
                let SourceSpan::File { line, .. } = first.key_span else {
                    unreachable!("keys are in the file")
                };
                self.problems.push(Problem::new(
                    key.span,
                    format!("`{text}` is already set on line {line}; remove one of the two"),
                ));
                continue;
            }
            entries.push(MapEntry { key: text, key_span: key.span, node });
        }
    }

    fn add_nodes(&mut self, nodes: usize, span: SourceSpan) -> Result<(), FatalProblem> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(FatalProblem(Problem::new(
                span,
                format!("more than {MAX_NODES} values (aliases counted each time)"),
            )));
        }
        Ok(())
    }
}

fn source_span(span: Span) -> SourceSpan {
    SourceSpan::File { line: span.start.line(), column: span.start.col() + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        parse(text, &mut problems);
        problems
            .into_iter()
            .map(|Problem { span, message }| match span {
                SourceSpan::File { line, column } => format!("{line}:{column} {message}"),
                SourceSpan::Flag(_) | SourceSpan::Whole => message,
            })
            .collect()
    }

    #[test]
    fn an_alias_stands_for_what_its_anchor_names() {
        let mut found = Vec::new();
        let root = parse("a: &x { b: 1 }\nc: *x\n", &mut found).expect("a tree");
        assert_eq!(found, []);
        let NodeValue::Map(entries) = root.value else { panic!("a mapping") };
        assert_eq!(entries[0].node, entries[1].node);
    }

    #[test]
    fn unsupported_yaml_is_rejected_by_name() {
        assert_eq!(problems("a: 1\nb: 2\na: 3"), ["3:1 `a` is already set on line 1; remove one of the two"]);
        assert_eq!(problems("a: !secret x"), ["1:4 the tag `!secret` is not supported; remove it"]);
        assert_eq!(
            problems("a: &x {}\nb: { <<: *x }"),
            [
                "2:6 merge keys (`<<`) are not supported; write the keys out, or use an alias for the whole value"
            ]
        );
        assert_eq!(
            problems("a: 1\n---\nb: 2"),
            ["2:1 a second YAML document; a file holds one configuration"]
        );
        assert_eq!(problems("? [a]\n: 1"), ["1:3 a key must be a string, not a list"]);
        assert!(
            problems("a: *missing")[0].starts_with("1:4 not valid YAML"),
            "{:?}",
            problems("a: *missing")
        );
        assert!(problems("a: [1\nb: 2")[0].contains("not valid YAML"));
        assert_eq!(problems(&"[".repeat(100)).len(), 1);
    }

    #[test]
    fn aliases_of_aliases_do_not_grow_without_bound() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..10 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text += &format!("a{level}: &a{level} [{aliases}]\n");
        }
        let found = problems(&text);
        assert!(found[0].contains("more than 100000 values"), "{found:?}");
    }

    #[test]
    fn plain_scalars_have_yaml_types_and_quoted_ones_are_strings() {
        let scalar = |text: &str| parse(text, &mut vec![]).expect("a tree").scalar_type();
        assert_eq!(scalar("1"), Some(ScalarType::Number));
        assert_eq!(scalar("-1.5e3"), Some(ScalarType::Number));
        assert_eq!(scalar("0x1F"), Some(ScalarType::Number));
        assert_eq!(scalar("5s"), Some(ScalarType::Text));
        assert_eq!(scalar("'1'"), Some(ScalarType::Text));
        assert_eq!(scalar("true"), Some(ScalarType::Bool(true)));
        assert_eq!(scalar("off"), Some(ScalarType::Text));
        assert_eq!(scalar("~"), Some(ScalarType::Null));
        assert_eq!(scalar("infinity"), Some(ScalarType::Text));
    }
}
