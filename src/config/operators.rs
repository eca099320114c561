//! The keys of `admin`, the admin listener.

use super::{
    SpannedValue,
    environment::LoadContext,
    file::tls,
    secret::SecretSource,
    section::{DiagnosticSink, SectionReader, Setting, ValueType, mapping},
    value_types::{operator_token, or_off, text_value},
    values,
    yaml::{Node, NodeValue},
};
use crate::front;
use serde_json::json;
use std::net::SocketAddr;

/// The default address of the admin listener.
const DEFAULT: &str = "127.0.0.1:8809";

/// The values of the keys of `admin`, unless it is `off`.
pub(super) struct AdminKeys {
    pub(super) listen: SpannedValue<SocketAddr>,
    pub(super) token: Setting<SecretSource>,
    pub(super) tls: Option<front::TlsPaths>,
    /// Whether `tls` is written, valid or not.
    pub(super) has_tls: bool,
}

/// The type of `admin`: an address, a mapping, or `off`.
pub(super) fn operators(context: LoadContext<'_>) -> ValueType<'_, Option<AdminKeys>> {
    let one = or_off(json!({ "type": "string", "examples": [DEFAULT, "off"] }), values::admin);
    let all = mapping("`admin`", move |s| Some(keys(s, context)));
    let (one_schema, one, all_schema, all) = (one.schema, one.read, all.schema, all.read);
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => all(node, report).map(Some),
        _ => one(node, report).map(|address| {
            address.map(|listen| AdminKeys {
                listen: SpannedValue::new(node.place, listen),
                ..AdminKeys::default()
            })
        }),
    };
    ValueType {
        schema: Box::new(move || json!({ "anyOf": [one_schema(), all_schema()] })),
        show: |admin| {
            admin.as_ref().map_or_else(|| "off".into(), |admin| admin.listen.value.to_string().into())
        },
        read: Box::new(read),
    }
}

fn keys(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> AdminKeys {
    let address = text_value(json!({ "type": "string", "examples": [DEFAULT] }), values::address)
        .show_with(|address| address.to_string().into());
    let listen = s.key("listen", "Admin listen address.").read_spanned_or(address, default());
    let token = s.key(
        "token",
        "Admin token (`Authorization: Bearer`), in a file or a variable. Changes require it; so does \
         reading if `listen` is not on loopback. Default: generated at start and written to a file whose \
         path is printed (`admin.token` beside the store, else below `$XDG_RUNTIME_DIR/deferral/`).",
    );
    let token = token.read(operator_token());
    let paths = s.key("tls", "TLS of the admin listener, which then serves HTTPS only. Default: plain HTTP.");
    let paths = paths.read(mapping("`tls`", |s| Some(tls(s, context))));
    AdminKeys { listen, token, has_tls: !paths.is_unset(), tls: paths.ok().flatten() }
}

fn default() -> SocketAddr {
    DEFAULT.parse().expect("the default is an address")
}

// === impl AdminKeys ===

impl Default for AdminKeys {
    fn default() -> Self {
        Self {
            listen: SpannedValue::default_value(default()),
            token: Setting::Unset,
            tls: None,
            has_tls: false,
        }
    }
}
