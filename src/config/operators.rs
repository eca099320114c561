//! The keys of `admin`, the admin listener.

use super::{
    SpannedValue,
    environment::LoadContext,
    file::read_tls,
    secret::SecretSource,
    section::{DiagnosticSink, SectionReader, Setting, ValueType, mapping},
    value_types::{admin_token, or_off, text_value},
    values,
    yaml::{Node, NodeValue},
};
use crate::front;
use serde_json::json;
use std::net::SocketAddr;

/// The default address of the admin listener.
const DEFAULT_ADMIN: &str = "127.0.0.1:8809";

/// The values of the keys of `admin`, unless it is `off`.
pub(super) struct AdminKeys {
    pub(super) listen: SpannedValue<SocketAddr>,
    pub(super) token: Setting<SecretSource>,
    pub(super) tls: Option<front::TlsPaths>,
    /// Whether `tls` is written, valid or not.
    pub(super) has_tls: bool,
}

/// The type of `admin`: an address, a mapping, or `off`.
pub(super) fn admin_type(context: LoadContext<'_>) -> ValueType<'_, Option<AdminKeys>> {
    let address = or_off(json!({ "type": "string", "examples": [DEFAULT_ADMIN, "off"] }), values::admin);
    let section = mapping("`admin`", move |s| Some(read_admin_keys(s, context)));
    let (address_schema, read_address, section_schema, read_section) =
        (address.schema, address.read, section.schema, section.read);
    let read = move |node: &Node, report: &mut DiagnosticSink| match node.value {
        NodeValue::Map(_) => read_section(node, report).map(Some),
        _ => read_address(node, report).map(|address| {
            address.map(|listen| AdminKeys {
                listen: SpannedValue::new(node.span, listen),
                ..AdminKeys::default()
            })
        }),
    };
    ValueType {
        schema: Box::new(move || json!({ "anyOf": [address_schema(), section_schema()] })),
        show: |admin| {
            admin.as_ref().map_or_else(|| "off".into(), |admin| admin.listen.value.to_string().into())
        },
        read: Box::new(read),
    }
}

fn read_admin_keys(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> AdminKeys {
    let address = text_value(json!({ "type": "string", "examples": [DEFAULT_ADMIN] }), values::address)
        .show_with(|address| address.to_string().into());
    let listen = s.key("listen", "Admin listen address. On an address beyond loopback `tls` and `token` are required; without them the configuration is refused.").read_spanned_or(address, default_address());
    let token = s.key(
        "token",
        "Admin token (`Authorization: Bearer`), in a file or a variable. Requests need it for changes and for `/tap`; if `listen` is beyond loopback, for everything except `/live` and `/ready`. Default: generated at each start and written to the file `admin.token` in the parent folder of the store, or, without a store on disk, in `$XDG_RUNTIME_DIR/deferral/`.",
    );
    let token = token.read(admin_token());
    let paths = s.key("tls", "TLS of the admin listener, which then serves HTTPS only. Default: plain HTTP.");
    let paths = paths.read(mapping("`tls`", |s| Some(read_tls(s, context))));
    AdminKeys { listen, token, has_tls: !paths.is_unset(), tls: paths.ok().flatten() }
}

fn default_address() -> SocketAddr {
    DEFAULT_ADMIN.parse().expect("the default is an address")
}

// === impl AdminKeys ===

impl Default for AdminKeys {
    fn default() -> Self {
        Self {
            listen: SpannedValue::default_value(default_address()),
            token: Setting::Unset,
            tls: None,
            has_tls: false,
        }
    }
}
