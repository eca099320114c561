//! The parts of a server's `tools/list` that are needed to make calls.

use crate::protocol::headers::{ParamHeader, param_headers};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::HashMap};

/// The parameters of a server's tools that a call must mirror into HTTP headers (`x-mcp-header`), collected
/// from all pages of `tools/list`.
#[derive(Clone, Debug, Default)]
pub struct ToolParamHeaders {
    /// The mirrored parameters by tool name. Contains only tools that have some: most servers have none.
    by_tool: HashMap<Box<str>, Box<[ParamHeader]>>,
}

/// Error: a page of `tools/list` is invalid.
#[derive(Debug, thiserror::Error)]
#[error("a page of tools/list could not be read: {0}")]
pub struct InvalidToolPage(#[source] serde_json::Error);

// === impl ToolParamHeaders ===

impl ToolParamHeaders {
    /// Adds one page, the raw result of `tools/list`, and passes the name of each of its tools to `on_tool`.
    /// Returns the raw cursor of the next page; `None` on the last page.
    ///
    /// # Errors
    /// [`InvalidToolPage`] if the page is not a list of tools with names and schemas.
    pub fn add_page(
        &mut self,
        result: &Bytes,
        mut on_tool: impl FnMut(&str),
    ) -> Result<Option<Bytes>, InvalidToolPage> {
        let page: ToolsPage<'_> = serde_json::from_slice(result).map_err(InvalidToolPage)?;
        for tool in page.tools {
            on_tool(&tool.name);
            let schema = result.slice_ref(tool.input_schema.get().as_bytes());
            let mirrored = param_headers(&schema);
            if !mirrored.is_empty() {
                self.by_tool.insert(tool.name.into(), mirrored.into());
            }
        }
        Ok(page.next_cursor.map(|raw| result.slice_ref(raw.get().as_bytes())))
    }

    /// Returns the parameters of `tool` that must be mirrored into headers; empty for a tool without any.
    pub fn headers_of_tool(&self, tool: &str) -> &[ParamHeader] {
        self.by_tool.get(tool).map(|headers| &**headers).unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct ToolsPage<'a> {
    #[serde(borrow, default)]
    tools: Vec<ListedTool<'a>>,
    #[serde(borrow, default, rename = "nextCursor")]
    next_cursor: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ListedTool<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, rename = "inputSchema")]
    input_schema: &'a RawValue,
}
