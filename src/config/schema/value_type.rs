//! The type of a value, and how types are combined: lists, mappings beside single values, conversions.

use super::{
    problem::{DiagnosticSink, InvalidValue, Problem, SpannedValue, ValueResult},
    yaml::{Node, NodeValue, ScalarType},
};
use serde_json::{Value as Json, json};

/// The type of a value: its JSON Schema, the display form of its default, and its parser.
pub struct ValueType<'a, T> {
    /// Built on demand, because only editors need it.
    schema: Box<dyn Fn() -> Json + 'a>,
    show: Box<dyn Fn(&T) -> Json + 'a>,
    read: ReadFn<'a, T>,
}

/// Function that converts a node into a value, or reports a problem and returns `None`.
type ReadFn<'a, T> = Box<dyn Fn(&Node, &mut DiagnosticSink) -> Option<T> + 'a>;

// === impl ValueType ===

impl<'a, T: 'a> ValueType<'a, T> {
    /// Creates a type whose defaults are not shown.
    pub fn new(
        schema: impl Fn() -> Json + 'a,
        read: impl Fn(&Node, &mut DiagnosticSink) -> Option<T> + 'a,
    ) -> Self {
        Self { schema: Box::new(schema), show: Box::new(|_| Json::Null), read: Box::new(read) }
    }

    /// Creates the type of a scalar that is parsed from its text.
    pub fn scalar(schema: Json, parse: impl Fn(&str) -> ValueResult<T> + 'a) -> Self {
        Self::new(move || schema.clone(), move |node, report| read_scalar(node, report, &parse))
    }

    /// Like [`ValueType::scalar`], with strings that contain a variable in the schema.
    pub fn text(schema: Json, parse: impl Fn(&str) -> ValueResult<T> + 'a) -> Self {
        Self::scalar(or_variable(schema), parse)
    }

    /// Sets the function that converts a default into its display form.
    pub fn show_with(self, show: impl Fn(&T) -> Json + 'a) -> Self {
        Self { show: Box::new(show), ..self }
    }

    /// Sets the schema.
    pub fn with_schema(self, schema: impl Fn() -> Json + 'a) -> Self {
        Self { schema: Box::new(schema), ..self }
    }

    /// Accepts a mapping as well.
    pub fn or_mapping(self, mapping: Self) -> Self {
        self.or(|value| matches!(value, NodeValue::Map(_)), mapping)
    }

    /// Accepts a list as well.
    pub fn or_list(self, list: Self) -> Self {
        self.or(|value| matches!(value, NodeValue::List(_)), list)
    }

    fn or(self, is_other: fn(&NodeValue) -> bool, other: Self) -> Self {
        let Self { schema, show, read } = self;
        let read = move |node: &Node, report: &mut DiagnosticSink| match is_other(&node.value) {
            true => (other.read)(node, report),
            false => read(node, report),
        };
        let schema = move || json!({ "anyOf": [schema(), (other.schema)()] });
        Self { schema: Box::new(schema), show, read: Box::new(read) }
    }

    /// Rejects values other than mappings, with a message that does not show them.
    pub fn mapping_only(self, message: String) -> Self {
        let Self { schema, show, read } = self;
        let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
            NodeValue::Map(_) => read(node, report),
            NodeValue::List(_) | NodeValue::Scalar { .. } => report.reject(node.span, message.clone()),
        };
        Self { schema, show, read: Box::new(read) }
    }

    /// Converts the value. Defaults of the new type are not shown.
    pub fn map<U>(self, convert: impl Fn(T) -> U + 'a) -> ValueType<'a, U> {
        self.and_then(move |value, _, _| Some(convert(value)))
    }

    /// Converts the value of a node; `convert` returns `None` for an invalid one, and reports the problem.
    pub fn and_then<U>(
        self,
        convert: impl Fn(T, &Node, &mut DiagnosticSink) -> Option<U> + 'a,
    ) -> ValueType<'a, U> {
        let read =
            move |node: &Node, report: &mut DiagnosticSink| convert((self.read)(node, report)?, node, report);
        ValueType { schema: self.schema, show: Box::new(|_| Json::Null), read: Box::new(read) }
    }

    /// Returns the JSON Schema of the value.
    pub fn schema(&self) -> Json {
        (self.schema)()
    }

    /// Returns the display form of a default; `null` if it is not shown.
    pub fn show(&self, default: &T) -> Json {
        (self.show)(default)
    }

    /// Converts a node, or reports a problem and returns `None`.
    pub fn read(&self, node: &Node, report: &mut DiagnosticSink) -> Option<T> {
        (self.read)(node, report)
    }
}

impl<'a, T: 'a> ValueType<'a, Vec<T>> {
    /// Requires at least one item, in the schema only.
    pub fn with_min_items(self) -> Self {
        let Self { schema, show, read } = self;
        let schema = move || {
            let mut schema = schema();
            schema["minItems"] = 1.into();
            schema
        };
        Self { schema: Box::new(schema), show, read }
    }

    /// Requires at least one item. An empty list is reported with the message, and remains a value.
    pub fn non_empty(self, message: &'static str) -> Self {
        self.with_min_items().and_then(move |items, node, report| {
            if items.is_empty() {
                report.problems.push(Problem::new(node.span, message));
            }
            Some(items)
        })
    }
}

/// Creates the type of a list of items with their positions. An invalid item makes the list invalid after all
/// items have been read.
pub fn list<'a, T: 'a>(item: ValueType<'a, T>) -> ValueType<'a, Vec<SpannedValue<T>>> {
    let ValueType { schema, read, .. } = item;
    let read = move |node: &Node, report: &mut DiagnosticSink| {
        let NodeValue::List(items) = &node.value else {
            return report
                .reject(node.span, format!("must be a list (`- …` or `[…]`), not {}", node.type_name()));
        };
        let change_path =
            |report: &mut DiagnosticSink, change: fn(&mut String)| report.path.last_mut().map(change);
        change_path(report, |key| key.push_str("[]"));
        let read: Vec<_> = items
            .iter()
            .map(|item| read(item, report).map(|value| SpannedValue::new(item.span, value)))
            .collect();
        change_path(report, |key| key.truncate(key.len() - 2));
        read.into_iter().collect()
    };
    ValueType::new(move || json!({ "type": "array", "items": schema() }), read)
}

/// Parses a scalar from its text, whatever type YAML assigns to it. Reports an error without values of
/// variables, and returns `None`.
pub fn read_scalar<T>(
    node: &Node,
    report: &mut DiagnosticSink,
    read: impl Fn(&str) -> ValueResult<T>,
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
    report.accept(node.span, result)
}

/// Extends a schema by strings that contain a variable. A schema that accepts any string stays as it is.
pub fn or_variable(schema: Json) -> Json {
    let is_any = schema["type"] == "string" && schema["pattern"].is_null() && schema["enum"].is_null();
    let variable = json!({ "type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}" });
    match schema {
        any if is_any => any,
        Json::Object(mut several) if several.contains_key("anyOf") => {
            several["anyOf"].as_array_mut().expect("`anyOf` is a list").push(variable);
            several.into()
        }
        one => json!({ "anyOf": [one, variable] }),
    }
}
