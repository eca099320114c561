//! YAML as a tree that knows where everything was written.
//!
//! Only what a configuration needs: texts, lists and mappings with texts as keys. Anchors and
//! aliases work; tags, merge keys and several documents are refused by name. A key written twice
//! is a problem, not a choice.

use super::{
    problem::{Place, Problem},
    variables::Given,
};
use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use std::collections::HashMap;

/// Nesting deeper than this is refused. A configuration needs seven.
const MAX_DEPTH: usize = 64;
/// Nodes in all, those that aliases repeat included. Keeps a "billion laughs" file from growing.
const MAX_NODES: usize = 100_000;

/// A value and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// `plain` is a text without quotes, which YAML may take for a number, a truth value or nothing.
    Scalar {
        text: String,
        plain: bool,
        origin: Origin,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// Where a text comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Origin {
    /// It is written like that.
    Written,
    /// It has been made of what variables give.
    Variables(Box<Given>),
    /// It should have been, and that it cannot be is a problem already.
    Wrong,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_place: Place,
    pub(super) node: Node,
}

/// What a scalar is by YAML's core schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Number,
    Text,
}

/// Reads one document. What can be read despite problems is returned with them; `None` where the
/// text is not YAML or holds nothing.
pub(super) fn parse(text: &str, problems: &mut Vec<Problem>) -> Option<Node> {
    let mut reader =
        Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0, problems };
    match reader.document() {
        Ok(node) => node,
        Err(Stop(mut problem)) => {
            if stops_at_variable(text, problem.place) {
                problem.message += "; inside `{ }` and `[ ]` quote a variable, as in `\"${NAME}\"`";
            }
            problems.push(problem);
            None
        }
    }
}

/// Whether this is the brace of a `${`: within `{ }` and `[ ]` it would begin a mapping.
fn stops_at_variable(text: &str, place: Place) -> bool {
    let Place::File { line, column } = place else { return false };
    let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    line.chars().skip(column.saturating_sub(2)).take(2).eq("${".chars())
}

/// A problem after which there is no reading on.
struct Stop(Problem);

struct Reader<'i, 'p> {
    parser: Parser<'i, saphyr_parser::StrInput<'i>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    problems: &'p mut Vec<Problem>,
}

// === impl Node ===

impl Node {
    /// A text that stands in no file.
    pub fn text(place: Place, text: &str) -> Self {
        Self { place, value: Value::Scalar { text: text.to_owned(), plain: false, origin: Origin::Written } }
    }

    pub fn list(place: Place, items: impl IntoIterator<Item = Self>) -> Self {
        Self { place, value: Value::List(items.into_iter().collect()) }
    }

    /// A mapping without keys.
    pub fn map(place: Place) -> Self {
        Self { place, value: Value::Map(Vec::new()) }
    }

    pub const fn is_map(&self) -> bool {
        matches!(self.value, Value::Map(_))
    }

    /// Where it is written, and the items of a list.
    pub fn items(&self) -> Option<(Place, &[Self])> {
        let Value::List(items) = &self.value else { return None };
        Some((self.place, items))
    }

    pub fn items_mut(&mut self) -> Option<&mut Vec<Self>> {
        let Value::List(items) = &mut self.value else { return None };
        Some(items)
    }

    /// What a mapping has under this key; `None` of what is no mapping.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Value::Map(entries) = &mut self.value else { return None };
        entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
    }

    /// Puts this under the key, whatever was there; what is no mapping stays as it is, and is told so.
    pub fn set(&mut self, key: &str, node: Self) {
        if let Some(there) = self.get_mut(key) {
            *there = node;
        } else if let Value::Map(entries) = &mut self.value {
            entries.push(Entry { key: key.to_owned(), key_place: node.place, node });
        }
    }

    /// What is under the key, or else this. `None` of what is no mapping.
    pub fn get_or_insert(&mut self, key: &str, node: Self) -> Option<&mut Self> {
        if self.get_mut(key).is_none() {
            self.set(key, node);
        }
        self.get_mut(key)
    }

    /// What this is, in words for an error message.
    pub(super) fn what(&self) -> &'static str {
        match &self.value {
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
            Value::Scalar { .. } => match self.scalar() {
                Some(Scalar::Null) => "nothing",
                Some(Scalar::Bool(_)) => "true or false",
                Some(Scalar::Number) => "a number",
                Some(Scalar::Text) | None => "a string",
            },
        }
    }

    /// What YAML takes a scalar for; `None` for lists and mappings.
    pub(super) fn scalar(&self) -> Option<Scalar> {
        let Value::Scalar { text, plain, .. } = &self.value else { return None };
        if !plain {
            return Some(Scalar::Text);
        }
        Some(match text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
            "true" | "True" | "TRUE" => Scalar::Bool(true),
            "false" | "False" | "FALSE" => Scalar::Bool(false),
            text if is_number(text) => Scalar::Number,
            _ => Scalar::Text,
        })
    }

    /// The characters of a scalar, whatever YAML takes them for.
    pub(super) fn characters(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    /// A text as it was written, where variables have a part in it; else `None`.
    pub(super) fn given(&self) -> Option<&Given> {
        match &self.value {
            Value::Scalar { origin: Origin::Variables(given), .. } => Some(given),
            Value::Scalar { origin: Origin::Written | Origin::Wrong, .. }
            | Value::List(_)
            | Value::Map(_) => None,
        }
    }

    /// The characters of a scalar as they were written, with the names of variables in the place of their values.
    pub(super) fn as_written(&self) -> Option<&str> {
        self.given().map_or_else(|| self.characters(), |given| Some(&given.written))
    }

    /// Whether it should have been made of what variables give, and that it cannot be is a problem already.
    pub(super) const fn is_wrong(&self) -> bool {
        matches!(self.value, Value::Scalar { origin: Origin::Wrong, .. })
    }

    fn size(&self) -> usize {
        1 + match &self.value {
            Value::Scalar { .. } => 0,
            Value::List(items) => items.iter().map(Self::size).sum(),
            Value::Map(entries) => entries.iter().map(|entry| entry.node.size()).sum(),
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

// === impl Reader ===

impl<'i> Reader<'i, '_> {
    fn next(&mut self) -> Result<(Event<'i>, Place), Stop> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, place(span))),
            Some(Err(error)) => {
                let at = Place::File { line: error.marker().line(), column: error.marker().col() + 1 };
                Err(Stop(Problem::new(at, format!("not valid YAML: {}", error.info()))))
            }
            None => Err(Stop(Problem::new(Place::Whole, "not valid YAML: unexpected end of the file"))),
        }
    }

    fn document(&mut self) -> Result<Option<Node>, Stop> {
        let mut root = None;
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(root),
                (Event::StreamStart | Event::DocumentEnd | Event::Nothing, _) => {}
                (Event::DocumentStart(_), place) if root.is_some() => {
                    return Err(Stop(Problem::new(
                        place,
                        "a second YAML document; a file holds one configuration",
                    )));
                }
                (Event::DocumentStart(_), _) => {
                    let event = self.next()?;
                    root = Some(self.node(event, 0)?);
                }
                (event, place) => {
                    return Err(Stop(Problem::new(place, format!("unexpected {event:?}"))));
                }
            }
        }
    }

    fn node(&mut self, (event, place): (Event<'i>, Place), depth: usize) -> Result<Node, Stop> {
        self.count(1, place)?;
        if depth > MAX_DEPTH {
            return Err(Stop(Problem::new(place, format!("nested deeper than {MAX_DEPTH} levels"))));
        }
        let (anchor, tag, value) = match event {
            Event::Alias(anchor) => return self.alias(anchor, place),
            Event::Scalar(text, style, anchor, tag) => {
                let plain = matches!(style, ScalarStyle::Plain);
                (anchor, tag, Value::Scalar { text: text.into_owned(), plain, origin: Origin::Written })
            }
            Event::SequenceStart(anchor, tag) => (anchor, tag, Value::List(self.list(depth)?)),
            Event::MappingStart(anchor, tag) => (anchor, tag, Value::Map(self.map(depth)?)),
            event => return Err(Stop(Problem::new(place, format!("unexpected {event:?}")))),
        };
        if let Some(tag) = tag {
            self.problems.push(Problem::new(
                place,
                format!("the tag `{}{}` is not supported; remove it", tag.handle, tag.suffix),
            ));
        }
        let node = Node { place, value };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// A copy of what the anchor names. Its problems are shown where it was written.
    fn alias(&mut self, anchor: usize, place: Place) -> Result<Node, Stop> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err(Stop(Problem::new(place, "an alias within the value that it refers to")));
        };
        self.count(node.size(), place)?;
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Stop> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                event => items.push(self.node(event, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Stop> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let event = self.next()?;
            if matches!(event, (Event::MappingEnd, _)) {
                return Ok(entries);
            }
            let key = self.node(event, depth + 1)?;
            let event = self.next()?;
            let node = self.node(event, depth + 1)?;
            let Value::Scalar { text, plain, .. } = key.value else {
                self.problems
                    .push(Problem::new(key.place, format!("a key must be a string, not {}", key.what())));
                continue;
            };
            if plain && text == "<<" {
                self.problems.push(Problem::new(
                    key.place,
                    "merge keys (`<<`) are not supported; write the keys out, or use an alias for the whole value",
                ));
                continue;
            }
            if let Some(first) = entries.iter().find(|entry| entry.key == text) {
                let Place::File { line, .. } = first.key_place else { unreachable!("keys are in the file") };
                self.problems.push(Problem::new(
                    key.place,
                    format!("`{text}` is already set on line {line}; remove one of the two"),
                ));
                continue;
            }
            entries.push(Entry { key: text, key_place: key.place, node });
        }
    }

    fn count(&mut self, nodes: usize, place: Place) -> Result<(), Stop> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(Stop(Problem::new(
                place,
                format!("more than {MAX_NODES} values (aliases counted each time)"),
            )));
        }
        Ok(())
    }
}

fn place(span: Span) -> Place {
    Place::File { line: span.start.line(), column: span.start.col() + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        parse(text, &mut problems);
        problems
            .into_iter()
            .map(|Problem { place, message }| match place {
                Place::File { line, column } => format!("{line}:{column} {message}"),
                Place::Flag(_) | Place::Whole => message,
            })
            .collect()
    }

    #[test]
    fn an_alias_stands_for_what_its_anchor_names() {
        let mut found = Vec::new();
        let root = parse("a: &x { b: 1 }\nc: *x\n", &mut found).expect("a tree");
        assert_eq!(found, []);
        let Value::Map(entries) = root.value else { panic!("a mapping") };
        assert_eq!(entries[0].node, entries[1].node);
    }

    #[test]
    fn what_is_refused_is_refused_by_name() {
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
        assert!(problems("a: *nobody")[0].starts_with("1:4 not valid YAML"), "{:?}", problems("a: *nobody"));
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
    fn plain_words_are_what_yaml_takes_them_for_and_quoted_ones_are_texts() {
        let scalar = |text: &str| parse(text, &mut vec![]).expect("a tree").scalar();
        assert_eq!(scalar("1"), Some(Scalar::Number));
        assert_eq!(scalar("-1.5e3"), Some(Scalar::Number));
        assert_eq!(scalar("0x1F"), Some(Scalar::Number));
        assert_eq!(scalar("5s"), Some(Scalar::Text));
        assert_eq!(scalar("'1'"), Some(Scalar::Text));
        assert_eq!(scalar("true"), Some(Scalar::Bool(true)));
        assert_eq!(scalar("off"), Some(Scalar::Text));
        assert_eq!(scalar("~"), Some(Scalar::Null));
        assert_eq!(scalar("infinity"), Some(Scalar::Text));
    }
}
