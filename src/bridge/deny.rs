//! Removes denied tools (`mode: deny`) from a server's tool list.
//!
//! A page keeps its cursor even if no tool is left on it, because clients continue with the cursor.

use crate::protocol::{
    Frame, Kind,
    splice::{BytesPatch, JsonObject, array_items},
};
use bytes::Bytes;

/// Removes the denied tools from a server's response to `tools/list`. Returns `None` if nothing changes, or
/// if the message is no such response.
pub fn remove_denied_tools(response: &Frame, is_denied: impl Fn(&str) -> bool) -> Option<Bytes> {
    let Kind::Success { result, .. } = response.kind() else { return None };
    let list = result.get("tools")?;
    let tools = array_items(&list)?;
    // All members called `name` are checked: readers disagree about which of several counts.
    let must_hide = |tool: &Bytes| {
        let Ok(tool) = JsonObject::read(tool) else { return false };
        let mut names = tool.members().filter(|(key, _)| key == "name");
        names.any(|(_, name)| serde_json::from_slice::<String>(&name).is_ok_and(|name| is_denied(&name)))
    };
    let hidden: Vec<bool> = tools.iter().map(must_hide).collect();
    if !hidden.contains(&true) {
        return None;
    }
    let mut patch = BytesPatch::new(response.as_bytes().clone());
    if !hidden.contains(&false) {
        patch.replace(&list, Bytes::from_static(b"[]"));
        return Some(patch.apply());
    }
    let start = |index: usize| tools[index].as_ptr() as usize - list.as_ptr() as usize;
    let mut has_kept_tool = false;
    for (index, is_hidden) in hidden.into_iter().enumerate() {
        // The comma before the tool is removed with it if a tool stays before it, otherwise the comma after
        // it.
        let range = match (is_hidden, has_kept_tool) {
            (false, _) => {
                has_kept_tool = true;
                continue;
            }
            (true, true) => start(index - 1) + tools[index - 1].len()..start(index) + tools[index].len(),
            (true, false) => start(index)..start(index + 1),
        };
        patch.replace(&list.slice(range), Bytes::new());
    }
    Some(patch.apply())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(tools: &str, rest: &str) -> Option<String> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":{tools}{rest}}}}}"#);
        let answer = Frame::parse(text.into()).expect("a message");
        let seen = remove_denied_tools(&answer, |name| name.starts_with("rm"))?;
        let seen = String::from_utf8(seen.to_vec()).expect("text");
        serde_json::from_str::<serde_json::Value>(&seen).expect("it stays JSON");
        let tools =
            seen.strip_prefix(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":"#).expect("it begins alike");
        Some(tools.strip_suffix("}}").expect("it ends alike").to_owned())
    }

    #[test]
    fn a_denied_tool_is_removed_from_a_list_and_all_else_is_preserved() {
        let (a, b, rm) =
            (r#"{"name":"a", "x":1e5}"#, r#"{"x":[{"name":"rm"}],"name":"b"}"#, r#"{"name":"rm"}"#);
        for (tools, left) in [
            (format!("[ {rm} , {a},{b} ]"), format!("[ {a},{b} ]")),
            (format!("[ {a} , {rm} , {b} ]"), format!("[ {a} , {b} ]")),
            (format!("[{a},{b} , {rm} ]"), format!("[{a},{b} ]")),
            (format!("[{rm},{rm}, {a} ,{rm},{rm} , {b},{rm}]"), format!("[{a} , {b}]")),
        ] {
            assert_eq!(hidden(&tools, "").as_deref(), Some(&*left), "{tools}");
        }
        assert_eq!(hidden(&format!("[{a},{b}]"), ""), None);
        assert_eq!(hidden("[]", ""), None);
    }

    #[test]
    fn a_page_that_is_left_without_tools_keeps_its_cursor() {
        let left = hidden(r#"[{"name":"rm"}, {"name":"rm2"} ]"#, r#", "nextCursor":"2""#);
        assert_eq!(left.as_deref(), Some(r#"[], "nextCursor":"2""#));
    }

    #[test]
    fn a_name_is_known_however_it_is_spelled() {
        for tool in
            [r#"{"n\u0061me":"r\u006d"}"#, r#"{"name":"rm","name":"a"}"#, r#"{"name":"a","name":"rm"}"#]
        {
            assert_eq!(hidden(&format!("[{tool}]"), "").as_deref(), Some("[]"), "{tool}");
        }
    }
}
