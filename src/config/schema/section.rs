//! Declarations of keys ([`SectionReader::key`]).
//!
//! Deriving from structs with `serde` and `schemars` would repeat each key where its value is used, lose
//! source positions for checks across keys, and stop at the first problem.

use super::{
    hints,
    interpolation::InterpolatedText,
    problem::{DiagnosticSink, Problem, SourceSpan, SpannedValue, ValueResult},
    value_type::{ValueType, list},
    yaml::{MapEntry, Node, NodeValue, ScalarType},
};
use serde_json::{Map, Value as Json, json};

/// The value of a key: absent, invalid (and reported), or valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Setting<T> {
    #[default]
    Unset,
    Invalid,
    Valid(SpannedValue<T>),
}

/// The name of the top-level section in messages.
pub const TOP_LEVEL: &str = "the file";

/// A mapping that is being read key by key. It records the declared keys, and reports all others at the end.
/// An absent section has no entries, so that all defaults apply.
pub struct SectionReader<'n, 'r> {
    name: &'static str,
    /// Where the mapping begins; no position if it is absent.
    pub span: SourceSpan,
    entries: &'n [MapEntry],
    /// The declared keys, each with its schema if one is being built.
    known: Map<String, Json>,
    required: Vec<&'static str>,
    /// The keys that have a valid value, each with its position.
    valid: Vec<SpannedValue<&'static str>>,
    /// Alternative groups of keys, of which exactly one is required.
    groups: &'static [&'static [&'static str]],
    /// Whether a schema is being built, instead of a file being read.
    is_schema: bool,
    /// Collects problems and warnings.
    pub diagnostics: &'r mut DiagnosticSink,
}

/// A declared key, which is read by one of its methods.
pub struct SectionKey<'s, 'n, 'r> {
    section: &'s mut SectionReader<'n, 'r>,
    name: &'static str,
    description: &'static str,
    /// The default in the schema, if the value type shows none.
    default: Json,
}

// === impl Setting ===

impl<T> Setting<T> {
    /// Returns the value, if it is valid.
    pub fn ok(self) -> Option<T> {
        match self {
            Self::Valid(at) => Some(at.value),
            Self::Unset | Self::Invalid => None,
        }
    }

    /// Whether the key has a valid value.
    pub const fn is_valid(&self) -> bool {
        matches!(self, Self::Valid(_))
    }

    /// Whether the key is absent.
    pub const fn is_unset(&self) -> bool {
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
        diagnostics.reject(node.span, message)
    }

    fn absent(name: &'static str, diagnostics: &'r mut DiagnosticSink) -> Self {
        Self {
            name,
            span: SourceSpan::Whole,
            entries: &[],
            known: Map::new(),
            required: Vec::new(),
            valid: Vec::new(),
            groups: &[],
            is_schema: false,
            diagnostics,
        }
    }

    /// Declares a key with its description. A method of the returned [`SectionKey`] reads its value.
    pub fn key(&mut self, name: &'static str, description: &'static str) -> SectionKey<'_, 'n, 'r> {
        SectionKey { section: self, name, description, default: Json::Null }
    }

    /// Whether the section is written in the file.
    pub fn is_written(&self) -> bool {
        self.span != SourceSpan::Whole
    }

    /// Adds a `oneOf` of these key groups to the schema. The caller reports violations.
    pub fn require_one_of(&mut self, groups: &'static [&'static [&'static str]]) {
        self.groups = groups;
    }

    /// Reports a problem.
    pub fn add_problem(&mut self, span: SourceSpan, message: impl Into<String>) {
        self.diagnostics.problems.push(Problem::new(span, message));
    }

    /// Returns a valid value; reports an invalid one.
    pub fn accept<T>(&mut self, span: SourceSpan, value: ValueResult<T>) -> Option<T> {
        self.diagnostics.accept(span, value)
    }

    /// Adds a warning.
    pub fn warn(&mut self, span: SourceSpan, message: impl AsRef<str>) {
        self.diagnostics.warn(span, message);
    }

    /// Reports each of these keys that has a valid value, because of another key of the section.
    pub fn reject_keys(&mut self, keys: &[&str], describe: impl Fn(&str) -> String) {
        let valid = self.valid.iter().filter(|key| keys.contains(&key.value));
        self.diagnostics.problems.extend(valid.map(|key| Problem::new(key.span, describe(key.value))));
    }

    /// Returns the values without their positions. Reports repeated values with the message from `describe`,
    /// to which the position of the first one is passed.
    pub fn reject_repeated<T: PartialEq>(
        &mut self,
        items: Vec<SpannedValue<T>>,
        describe: impl Fn(&T, &str) -> String,
    ) -> Vec<T> {
        for (index, SpannedValue { span, value }) in items.iter().enumerate() {
            if let Some(first) = items[..index].iter().find(|first| first.value == *value) {
                self.add_problem(*span, describe(value, &first.span.suffix()));
            }
        }
        items.into_iter().map(|item| item.value).collect()
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
        let value = value_type.read(&entry.node, self.diagnostics);
        self.diagnostics.path.pop();
        self.diagnostics.name_value(first_new, &format!("`{key}`"));
        let Some(value) = value else { return Setting::Invalid };
        self.valid.push(SpannedValue::new(entry.node.span, key));
        Setting::Valid(SpannedValue::new(entry.node.span, value))
    }

    /// Reports the keys that the section does not declare.
    pub fn report_unknown_keys(self) {
        for entry in self.entries.iter().filter(|entry| !self.known.contains_key(&entry.key)) {
            let known: Vec<_> = self.known.keys().map(String::as_str).collect();
            let remedy = hints::suggest_fix(
                &entry.key,
                &self.diagnostics.path.join("."),
                &known,
                self.diagnostics.file_schema,
            );
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
    pub fn with_default(self, default: &str) -> Self {
        Self { default: default.into(), ..self }
    }

    /// Reads the setting.
    pub fn read<T>(self, value_type: ValueType<'_, T>) -> Setting<T> {
        let mut schema = Json::Null;
        if self.section.is_schema {
            schema = value_type.schema();
            schema["description"] = self.description.into();
            if !self.default.is_null() {
                schema["default"] = self.default;
            }
        }
        self.section.known.insert(self.name.to_owned(), schema);
        self.section.read_entry(self.name, value_type)
    }

    /// Reads a required setting. The caller reports its absence.
    pub fn read_required<T>(self, value_type: ValueType<'_, T>) -> Setting<T> {
        self.section.required.push(self.name);
        self.read(value_type)
    }

    /// Reads the setting; returns the default if it is absent or invalid.
    pub fn read_or<T>(self, value_type: ValueType<'_, T>, default: T) -> T {
        self.read_spanned_or(value_type, default).value
    }

    /// Like [`SectionKey::read_or`], with the position of the value; a default has none.
    pub fn read_spanned_or<T>(self, value_type: ValueType<'_, T>, default: T) -> SpannedValue<T> {
        match (Self { default: value_type.show(&default), ..self }).read(value_type) {
            Setting::Valid(at) => at,
            Setting::Unset | Setting::Invalid => SpannedValue::default_value(default),
        }
    }

    /// Reads an optional list; returns its items with their positions, none if the list is absent or invalid.
    pub fn read_list<T>(self, item: ValueType<'_, T>) -> Vec<SpannedValue<T>> {
        self.read_or(list(item), Vec::new())
    }

    /// Reads a section; `name` names it in messages. If the section is absent, its keys get their defaults.
    pub fn read_section<T>(self, name: &'static str, keys: impl Fn(&mut SectionReader<'_, '_>) -> T) -> T {
        let keys = &keys;
        let read = self.read(mapping(name, |s| Some(keys(s))));
        read.ok().unwrap_or_else(|| keys(&mut SectionReader::absent(name, &mut no_diagnostics())))
    }
}

/// Returns a sink for a section that is not in the file, and so has no problems.
const fn no_diagnostics() -> DiagnosticSink {
    DiagnosticSink::new(|| Json::Null)
}

/// Returns the JSON Schema of a section with these keys.
pub fn section_schema<T>(name: &'static str, keys: impl Fn(&mut SectionReader<'_, '_>) -> T) -> Json {
    let mut diagnostics = no_diagnostics();
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
pub fn mapping<'a, T: 'a>(
    name: &'static str,
    keys: impl Fn(&mut SectionReader<'_, '_>) -> Option<T> + Clone + 'a,
) -> ValueType<'a, T> {
    let schema_keys = keys.clone();
    let schema = move || section_schema(name, &schema_keys);
    let read =
        move |node: &Node, diagnostics: &mut DiagnosticSink| read_mapping(node, name, diagnostics, &keys)?;
    ValueType::new(schema, read)
}

/// Reads a mapping with these keys. Reports any other node.
pub fn read_mapping<T>(
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
