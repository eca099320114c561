//! The headers that mirror arguments (2026-07-28, *Custom Headers from Tool Parameters*).

use crate::protocol::headers::{self, ParamHeader};
use http::HeaderMap;
use serde_json::{Value, value::RawValue};

/// Returns the headers that mirror the arguments. Arguments that are absent, or neither text, number nor
/// boolean, have no header.
pub(super) fn mirror_arguments(params: &[ParamHeader], arguments: &RawValue) -> HeaderMap {
    let mut map = HeaderMap::new();
    if params.is_empty() {
        return map;
    }
    let Ok(arguments) = serde_json::from_str::<Value>(arguments.get()) else { return map };
    for param in params {
        let value = param.path.iter().try_fold(&arguments, |value, name| value.get(name));
        let text = match value {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Bool(boolean)) => boolean.to_string(),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => continue,
        };
        map.insert(param.header.clone(), headers::encode(&text));
    }
    map
}
