//! What the keys of the file are declared with: a mapping key by key, a list item by item, and single values.
//!
//! A key is declared once, where its value is used ([`Section::key`]): its name, its description, what may be
//! written ([`Kind`]) and its default. What is wrong in the file, what an editor is told and which keys there are,
//! all come from that.
//!
//! Structs that `serde` reads and `schemars` describes would name each key again where its value is used, lose the
//! place of what crosses keys, and stop at the first problem; that took more lines than this.

use super::{
    hints,
    problem::{At, Place, Problem},
    values::Invalid,
    variables::Given,
    yaml::{Entry, Node, Scalar, Value},
};
use serde_json::{Map, Value as Json, json};

/// What is found out while the file is read.
#[derive(Default)]
pub(super) struct Report {
    pub(super) problems: Vec<Problem>,
    /// What is allowed and yet probably not meant.
    pub(super) doubts: Vec<Problem>,
    /// The keys down to the section that is being read; those of lists end with `[]`.
    pub(super) path: Vec<String>,
}

/// A setting: not written, written but wrong (and reported), or written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Set<T> {
    #[default]
    Unset,
    Wrong,
    To(At<T>),
}

/// What may be written somewhere, and what it means.
pub(super) struct Kind<'a, T> {
    /// As a JSON Schema, which is made for editors alone.
    pub(super) schema: Box<dyn Fn() -> Json + 'a>,
    /// How a default is shown; `null` for not at all.
    pub(super) show: fn(&T) -> Json,
    pub(super) read: Reader<'a, T>,
}

type Reader<'a, T> = Box<dyn Fn(&Node, &mut Report) -> Option<T> + 'a>;

/// The name of what holds all sections.
pub(super) const TOP: &str = "the file";

/// A mapping whose keys are being taken one by one. It learns the keys there are from those asked
/// for, and reports the others in the end. One that is not written has no keys, so all of its defaults hold.
pub(super) struct Section<'n, 'r> {
    name: &'static str,
    pub(super) place: Place,
    entries: &'n [Entry],
    known: Map<String, Json>,
    required: Vec<&'static str>,
    /// Keys that go together, and not with those of another group.
    groups: &'static [&'static [&'static str]],
    /// Whether it is read, or else described.
    describes: bool,
    pub(super) report: &'r mut Report,
}

/// A key that has been declared, and is to be read.
pub(super) struct Key<'s, 'n, 'r> {
    section: &'s mut Section<'n, 'r>,
    name: &'static str,
    about: &'static str,
    /// For editors, where it is not the reader's.
    default: Json,
}

// === impl Kind ===

impl<T> Kind<'_, T> {
    /// Whose defaults are shown like this.
    pub(super) fn shown(self, show: fn(&T) -> Json) -> Self {
        Self { show, ..self }
    }
}

impl<'a, T> Kind<'a, Vec<T>> {
    /// Of which there must be one. Whoever asks says so where there is none.
    pub(super) fn some(self) -> Self {
        let Self { schema, show, read } = self;
        let schema = move || {
            let mut schema = schema();
            schema["minItems"] = 1.into();
            schema
        };
        Self { schema: Box::new(schema), show, read }
    }
}

// === impl Set ===

impl<T> Set<T> {
    /// What was written, if it can be used.
    pub(super) fn given(self) -> Option<T> {
        match self {
            Self::To(at) => Some(at.value),
            Self::Unset | Self::Wrong => None,
        }
    }

    pub(super) const fn is_unset(&self) -> bool {
        matches!(self, Self::Unset)
    }
}

// === impl Section ===

impl<'n, 'r> Section<'n, 'r> {
    /// One that is written as this; `None` for what is no mapping, which is reported.
    fn open(node: &'n Node, name: &'static str, report: &'r mut Report) -> Option<Self> {
        if let Value::Map(entries) = &node.value {
            return Some(Self { place: node.place, entries, ..Self::unwritten(name, report) });
        }
        let message = format!("{name} must be a mapping (`key: value`), not {}", node.what());
        report.problems.push(Problem::new(node.place, message));
        None
    }

    fn unwritten(name: &'static str, report: &'r mut Report) -> Self {
        Self {
            name,
            place: Place::Whole,
            entries: &[],
            known: Map::new(),
            required: Vec::new(),
            groups: &[],
            describes: false,
            report,
        }
    }

    /// Declares a key, to be read next.
    pub(super) fn key(&mut self, name: &'static str, about: &'static str) -> Key<'_, 'n, 'r> {
        Key { section: self, name, about, default: Json::Null }
    }

    pub(super) fn is_written(&self) -> bool {
        self.place != Place::Whole
    }

    /// Tells editors that the keys of one group are to be written. Whoever asks says so where it is otherwise.
    pub(super) fn either(&mut self, groups: &'static [&'static [&'static str]]) {
        self.groups = groups;
    }

    /// Something is wrong.
    pub(super) fn wrong(&mut self, place: Place, message: impl Into<String>) {
        self.report.problems.push(Problem::new(place, message));
    }

    fn take<T>(&mut self, key: &'static str, kind: Kind<'_, T>) -> Set<T> {
        let Some(entry) = self.entries.iter().find(|entry| entry.key == key) else { return Set::Unset };
        if entry.node.scalar() == Some(Scalar::Null) {
            match entry.node.given() {
                Some(Given { written, .. }) => self.wrong(
                    entry.node.place,
                    format!("`{key}` has no value: `{written}` is empty; set the variable, or add a default as in `${{NAME:-default}}`"),
                ),
                None => self.wrong(entry.key_place, format!("`{key}` has no value; give it one or remove the line")),
            }
            return Set::Wrong;
        }
        let before = self.report.problems.len();
        self.report.path.push(key.to_owned());
        let value = (kind.read)(&entry.node, self.report);
        self.report.path.pop();
        // The readers of single values do not know whose value they read.
        for problem in &mut self.report.problems[before..] {
            if problem.message.starts_with("must ") {
                problem.message.insert_str(0, &format!("`{key}` "));
            }
        }
        match value {
            Some(value) => Set::To(At::new(entry.node.place, value)),
            None => Set::Wrong,
        }
    }

    /// Reports the keys that the section does not have.
    pub(super) fn close(self) {
        for entry in self.entries.iter().filter(|entry| !self.known.contains_key(&entry.key)) {
            let known: Vec<_> = self.known.keys().map(String::as_str).collect();
            let remedy = hints::remedy(&entry.key, &self.report.path.join("."), &known);
            let place =
                if self.name == TOP { "at the top level".to_owned() } else { format!("in {}", self.name) };
            let message = format!("unknown key `{}` {place}; {remedy}", entry.key);
            self.report.problems.push(Problem::new(entry.key_place, message));
        }
    }
}

// === impl Key ===

impl Key<'_, '_, '_> {
    /// What holds where nothing is written, for whoever asks by [`Key::set`].
    pub(super) fn with_default(self, default: &str) -> Self {
        Self { default: default.into(), ..self }
    }

    /// What is written, if anything is.
    pub(super) fn set<T>(self, kind: Kind<'_, T>) -> Set<T> {
        let mut schema = Json::Null;
        if self.section.describes {
            schema = (kind.schema)();
            schema["description"] = self.about.into();
            if !self.default.is_null() {
                schema["default"] = self.default;
            }
        }
        self.section.known.insert(self.name.to_owned(), schema);
        self.section.take(self.name, kind)
    }

    /// The same for a key that must be there. Whoever asks says so where it is not.
    pub(super) fn required<T>(self, kind: Kind<'_, T>) -> Set<T> {
        self.section.required.push(self.name);
        self.set(kind)
    }

    /// What is written, or else the default.
    pub(super) fn or<T>(self, kind: Kind<'_, T>, default: T) -> T {
        self.at(kind, default).value
    }

    /// The same and where that is: a default is nowhere in particular.
    pub(super) fn at<T>(self, kind: Kind<'_, T>, default: T) -> At<T> {
        match (Self { default: (kind.show)(&default), ..self }).set(kind) {
            Set::To(at) => at,
            Set::Unset | Set::Wrong => At::unwritten(default),
        }
    }

    /// The items of a list that may be left out.
    pub(super) fn list<T>(self, item: Kind<'_, T>) -> Vec<At<T>> {
        self.or(list(item), Vec::new())
    }

    /// A section, named so. Its keys are asked for whether it is written or not: then their defaults hold.
    pub(super) fn section<T>(self, name: &'static str, keys: impl Fn(&mut Section<'_, '_>) -> T) -> T {
        let keys = &keys;
        let read = self.set(mapping(name, |s| Some(keys(s))));
        read.given().unwrap_or_else(|| keys(&mut Section::unwritten(name, &mut Report::default())))
    }
}

/// What an editor is told of a section with these keys.
pub(super) fn schema<T>(name: &'static str, keys: impl Fn(&mut Section<'_, '_>) -> T) -> Json {
    let mut report = Report::default();
    let mut section = Section { describes: true, ..Section::unwritten(name, &mut report) };
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

/// A mapping with these keys; `None` of them for what is reported.
pub(super) fn mapping<'a, T>(
    name: &'static str,
    keys: impl Fn(&mut Section<'_, '_>) -> Option<T> + Clone + 'a,
) -> Kind<'a, T> {
    let described = keys.clone();
    let schema = move || schema(name, &described);
    let read = move |node: &Node, report: &mut Report| read(node, name, report, &keys)?;
    Kind { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// Reads a mapping with these keys. What is no mapping is reported.
pub(super) fn read<T>(
    node: &Node,
    name: &'static str,
    report: &mut Report,
    keys: impl Fn(&mut Section<'_, '_>) -> T,
) -> Option<T> {
    let mut section = Section::open(node, name, report)?;
    let value = keys(&mut section);
    section.close();
    Some(value)
}

/// The items of a list, each with its place. One that is wrong makes the list wrong, after the
/// others were looked at.
pub(super) fn list<'a, T: 'a>(item: Kind<'a, T>) -> Kind<'a, Vec<At<T>>> {
    let Kind { schema, read, .. } = item;
    let read = move |node: &Node, report: &mut Report| {
        let Value::List(items) = &node.value else {
            let message = format!("must be a list (`- …` or `[…]`), not {}", node.what());
            report.problems.push(Problem::new(node.place, message));
            return None;
        };
        let in_list = |report: &mut Report, change: fn(&mut String)| report.path.last_mut().map(change);
        in_list(report, |key| key.push_str("[]"));
        let read: Vec<_> =
            items.iter().map(|item| read(item, report).map(|value| At::new(item.place, value))).collect();
        in_list(report, |key| key.truncate(key.len() - 2));
        read.into_iter().collect()
    };
    let schema = move || json!({ "type": "array", "items": schema() });
    Kind { schema: Box::new(schema), show: |_| Json::Null, read: Box::new(read) }
}

/// A single value, read from its text whatever YAML takes it for.
pub(super) fn leaf<T>(
    node: &Node,
    report: &mut Report,
    read: impl Fn(&str) -> Result<T, Invalid>,
) -> Option<T> {
    if node.is_wrong() {
        return None;
    }
    let result = match (node.characters(), node.given()) {
        (Some(text), None) if node.scalar() != Some(Scalar::Null) => read(text),
        (Some(text), Some(given)) => {
            read(text).map_err(|said| given.wrong(text, said, || read(&given.written).err()))
        }
        _ => Err(Invalid(format!("must be a single value, not {}", node.what()))),
    };
    result.map_err(|Invalid(message)| report.problems.push(Problem::new(node.place, message))).ok()
}
