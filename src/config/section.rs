//! Declarations of keys: mappings key by key, lists item by item, and single values.
//!
//! A key is declared once, where its value is used ([`SectionReader::key`]): its name, description, type
//! ([`ValueType`]) and default. Validation, the JSON Schema and the list of known keys are derived from the
//! declaration.
//!
//! Deriving from structs with `serde` and `schemars` would repeat each key where its value is used, lose
//! source positions for checks across keys, and stop at the first problem.

use super::{
    hints,
    problem::{Problem, SourceSpan, SpannedValue},
    values::InvalidValue,
    variables::InterpolatedText,
    yaml::{MapEntry, Node, NodeValue, ScalarType},
};
use serde_json::{Map, Value as Json, json};

/// Collects problems and warnings while the file is read.
#[derive(Default)]
pub(super) struct DiagnosticSink {
    pub(super) problems: Vec<Problem>,
    /// Warnings about valid but probably unintended values.
    pub(super) warnings: Vec<Problem>,
    /// Path of the section that is being read; lists end with `[]`.
    pub(super) path: Vec<String>,
}

/// The value of a key: absent, invalid (and reported), or valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Setting<T> {
    #[default]
    Unset,
    Invalid,
    Valid(SpannedValue<T>),
}

/// The type of a value: its JSON Schema, the display form of its default, and its parser.
pub(super) struct ValueType<'a, T> {
    /// The JSON Schema of the value. Built on demand, because only editors need it.
    pub(super) schema: Box<dyn Fn() -> Json + 'a>,
    /// The display form of a default; `null` if it is not shown.
    pub(super) show: fn(&T) -> Json,
    /// Converts a node, or reports a problem and returns `None`.
    pub(super) read: ReadFn<'a, T>,
}

/// Function that converts a node into a value, or reports a problem and returns `None`.
type ReadFn<'a, T> = Box<dyn Fn(&Node, &mut DiagnosticSink) -> Option<T> + 'a>;

/// The name of the top-level section in messages.
pub(super) const TOP_LEVEL: &str = "the file";

/// A mapping that is being read key by key. It records the declared keys, and reports all others at the end.
/// An absent section has no entries, so that all defaults apply.
pub(super) struct SectionReader<'n, 'r> {
    name: &'static str,
    /// Where the mapping begins; no position if it is absent.
    pub(super) span: SourceSpan,
    entries: &'n [MapEntry],
    /// The declared keys, each with its schema if one is being built.
    known: Map<String, Json>,
    required: Vec<&'static str>,
    /// Alternative groups of keys, of which exactly one is required.
    groups: &'static [&'static [&'static str]],
    /// Whether a schema is being built, instead of a file being read.
    is_schema: bool,
    /// Collects problems and warnings.
    pub(super) diagnostics: &'r mut DiagnosticSink,
}

/// A declared key, which is read by one of its methods.
pub(super) struct SectionKey<'s, 'n, 'r> {
    section: &'s mut SectionReader<'n, 'r>,
    name: &'static str,
    description: &'static str,
    /// The default in the schema, if the value type shows none.
    default: Json,
}

// === impl ValueType ===

impl<T> ValueType<'_, T> {
    /// Sets the function that converts a default into its display form.
    pub(super) fn show_with(self, show: fn(&T) -> Json) -> Self {
        Self { show, ..self }
    }
}

impl<'a, T> ValueType<'a, Vec<T>> {
    /// Requires at least one item in the schema. The caller reports an empty list.
    pub(super) fn non_empty(self) -> Self {
        let Self { schema, show, read } = self;
        let schema = move || {
            let mut schema = schema();
            schema["minItems"] = 1.into();
            schema
        };
        Self { schema: Box::new(schema), show, read }
    }
}

// === impl Setting ===

impl<T> Setting<T> {
    /// Returns the value, if it is valid.
    pub(super) fn ok(self) -> Option<T> {
        match self {
            Self::Valid(at) => Some(at.value),
            Self::Unset | Self::Invalid => None,
        }
    }

    /// Whether the key is absent.
    pub(super) const fn is_unset(&self) -> bool {
        matches!(self, Self::Unset)
    }
}

// === impl SectionReader ===

impl<'n, 'r> SectionReader<'n, 'r> {
    /// Opens a mapping; reports any other node and returns `None`.
    fn open(node: &'n Node, name: &'static str, diagnostics: &'r mut DiagnosticSink) -> Option<Self> {
        if let NodeValue::Map(entries) = &node.value {
            return Some(Self { span: node.span, entries, ..Self::absent(name, diagnostics) });
        }
        let message = format!("{name} must be a mapping (`key: value`), not {}", node.type_name());
        diagnostics.problems.push(Problem::new(node.span, message));
        None
    }

    fn absent(name: &'static str, diagnostics: &'r mut DiagnosticSink) -> Self {
        Self {
            name,
            span: SourceSpan::Whole,
            entries: &[],
            known: Map::new(),
            required: Vec::new(),
            groups: &[],
            is_schema: false,
            diagnostics,
        }
    }

    /// Declares a key with its description. A method of the returned [`SectionKey`] reads its value.
    pub(super) fn key(&mut self, name: &'static str, description: &'static str) -> SectionKey<'_, 'n, 'r> {
        SectionKey { section: self, name, description, default: Json::Null }
    }

    /// Whether the section is written in the file.
    pub(super) fn is_written(&self) -> bool {
        self.span != SourceSpan::Whole
    }

    /// Adds a `oneOf` of these key groups to the schema. The caller reports violations.
    pub(super) fn require_one_of(&mut self, groups: &'static [&'static [&'static str]]) {
        self.groups = groups;
    }

    /// Reports a problem.
    pub(super) fn add_problem(&mut self, span: SourceSpan, message: impl Into<String>) {
        self.diagnostics.problems.push(Problem::new(span, message));
    }

    fn read_entry<T>(&mut self, key: &'static str, value_type: ValueType<'_, T>) -> Setting<T> {
        let Some(entry) = self.entries.iter().find(|entry| entry.key == key) else { return Setting::Unset };
        if entry.node.scalar_type() == Some(ScalarType::Null) {
            match entry.node.interpolation() {
                Some(InterpolatedText { written, .. }) => self.add_problem(
                    entry.node.span,
                    format!("`{key}` has no value: `{written}` is empty; set the variable, or add a default as in `${{NAME:-default}}`"),
                ),
                None => self.add_problem(entry.key_span, format!("`{key}` has no value; give it one or remove the line")),
            }
            return Setting::Invalid;
        }
        let first_new = self.diagnostics.problems.len();
        self.diagnostics.path.push(key.to_owned());
        let value = (value_type.read)(&entry.node, self.diagnostics);
        self.diagnostics.path.pop();
        // Parsers of single values do not know the key of the value.
        for problem in &mut self.diagnostics.problems[first_new..] {
            if problem.message.starts_with("must ") {
                problem.message.insert_str(0, &format!("`{key}` "));
            }
        }
        match value {
            Some(value) => Setting::Valid(SpannedValue::new(entry.node.span, value)),
            None => Setting::Invalid,
        }
    }

    /// Reports the keys that the section does not declare.
    pub(super) fn report_unknown_keys(self) {
        for entry in self.entries.iter().filter(|entry| !self.known.contains_key(&entry.key)) {
            let known: Vec<_> = self.known.keys().map(String::as_str).collect();
            let remedy = hints::suggest_fix(&entry.key, &self.diagnostics.path.join("."), &known);
            let location = if self.name == TOP_LEVEL {
                "at the top level".to_owned()
            } else {
                format!("in {}", self.name)
            };
            let message = format!("unknown key `{}` {location}; {remedy}", entry.key);
            self.diagnostics.problems.push(Problem::new(entry.key_span, message));
        }
    }
}

// === impl SectionKey ===

impl SectionKey<'_, '_, '_> {
    /// Sets the default in the schema, for callers of [`SectionKey::read`].
    pub(super) fn with_default(self, default: &str) -> Self {
        Self { default: default.into(), ..self }
    }

    /// Reads the setting.
    pub(super) fn read<T>(self, value_type: ValueType<'_, T>) -> Setting<T> {
        let mut schema = Json::Null;
        if self.section.is_schema {
            schema = (value_type.schema)();
            schema["description"] = self.description.into();
            if !self.default.is_null() {
                schema["default"] = self.default;
            }
        }
        self.section.known.insert(self.name.to_owned(), schema);
        self.section.read_entry(self.name, value_type)
    }

    /// Reads a required setting. The caller reports its absence.
    pub(super) fn read_required<T>(self, value_type: ValueType<'_, T>) -> Setting<T> {
        self.section.required.push(self.name);
        self.read(value_type)
    }

    /// Reads the setting; returns the default if it is absent or invalid.
    pub(super) fn read_or<T>(self, value_type: ValueType<'_, T>, default: T) -> T {
        self.read_spanned_or(value_type, default).value
    }

    /// Like [`SectionKey::read_or`], with the position of the value; a default has none.
    pub(super) fn read_spanned_or<T>(self, value_type: ValueType<'_, T>, default: T) -> SpannedValue<T> {
        match (Self { default: (value_type.show)(&default), ..self }).read(value_type) {
            Setting::Valid(at) => at,
            Setting::Unset | Setting::Invalid => SpannedValue::default_value(default),
        }
    }

    /// Reads an optional list; returns its items with their positions, none if the list is absent or invalid.
    pub(super) fn read_list<T>(self, item: ValueType<'_, T>) -> Vec<SpannedValue<T>> {
        self.read_or(list(item), Vec::new())
    }

    /// Reads a section; `name` names it in messages. If the section is absent, its keys get their defaults.
    pub(super) fn read_section<T>(
        self,
        name: &'static str,
        keys: impl Fn(&mut SectionReader<'_, '_>) -> T,
    ) -> T {
        let keys = &keys;
        let read = self.read(mapping(name, |s| Some(keys(s))));
        read.ok().unwrap_or_else(|| keys(&mut SectionReader::absent(name, &mut DiagnosticSink::default())))
    }
}

/// Returns the JSON Schema of a section with these keys.
pub(super) fn schema<T>(name: &'static str, keys: impl Fn(&mut SectionReader<'_, '_>) -> T) -> Json {
    let mut diagnostics = DiagnosticSink::default();
    let mut section = SectionReader { is_schema: true, ..SectionReader::absent(name, &mut diagnostics) };
    keys(&mut section);
    let mut schema = json!({ "type": "object", "properties": section.known, "additionalProperties": false });
    if !section.required.is_empty() {
        schema["required"] = section.required.into();
    }
    if !section.groups.is_empty() {
        schema["oneOf"] = section.groups.iter().map(|keys| json!({ "required": keys })).collect();
    }
    schema
}

/// Creates the type of a mapping with these keys. `keys` returns `None` for an invalid mapping, and reports
/// the problem.
pub(super) fn mapping<'a, T>(
    name: &'static str,
    keys: impl Fn(&mut SectionReader<'_, '_>) -> Option<T> + Clone + 'a,
) -> ValueType<'a, T> {
    let schema_keys = keys.clone();
    let schema = move || schema(name, &schema_keys);
    let read =
        move |node: &Node, diagnostics: &mut DiagnosticSink| read_mapping(node, name, diagnostics, &keys)?;
    ValueType { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// Reads a mapping with these keys. Reports any other node.
pub(super) fn read_mapping<T>(
    node: &Node,
    name: &'static str,
    diagnostics: &mut DiagnosticSink,
    keys: impl Fn(&mut SectionReader<'_, '_>) -> T,
) -> Option<T> {
    let mut section = SectionReader::open(node, name, diagnostics)?;
    let value = keys(&mut section);
    section.report_unknown_keys();
    Some(value)
}

/// Creates the type of a list of items with their positions. An invalid item makes the list invalid after all
/// items have been read.
pub(super) fn list<'a, T: 'a>(item: ValueType<'a, T>) -> ValueType<'a, Vec<SpannedValue<T>>> {
    let ValueType { schema, read, .. } = item;
    let read = move |node: &Node, diagnostics: &mut DiagnosticSink| {
        let NodeValue::List(items) = &node.value else {
            let message = format!("must be a list (`- …` or `[…]`), not {}", node.type_name());
            diagnostics.problems.push(Problem::new(node.span, message));
            return None;
        };
        let change_path = |diagnostics: &mut DiagnosticSink, change: fn(&mut String)| {
            diagnostics.path.last_mut().map(change)
        };
        change_path(diagnostics, |key| key.push_str("[]"));
        let read: Vec<_> = items
            .iter()
            .map(|item| read(item, diagnostics).map(|value| SpannedValue::new(item.span, value)))
            .collect();
        change_path(diagnostics, |key| key.truncate(key.len() - 2));
        read.into_iter().collect()
    };
    let schema = move || json!({ "type": "array", "items": schema() });
    ValueType { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// Parses a scalar from its text, whatever type YAML assigns to it. Reports an error without values of
/// variables, and returns `None`.
pub(super) fn read_scalar<T>(
    node: &Node,
    diagnostics: &mut DiagnosticSink,
    read: impl Fn(&str) -> Result<T, InvalidValue>,
) -> Option<T> {
    if node.is_invalid() {
        return None;
    }
    let result = match (node.scalar_text(), node.interpolation()) {
        (Some(text), None) if node.scalar_type() != Some(ScalarType::Null) => read(text),
        (Some(text), Some(interpolated)) => read(text)
            .map_err(|error| interpolated.redact_error(text, error, || read(&interpolated.written).err())),
        _ => Err(InvalidValue(format!("must be a single value, not {}", node.type_name()))),
    };
    result.map_err(|InvalidValue(message)| diagnostics.problems.push(Problem::new(node.span, message))).ok()
}
