//! The keys of `admin`: where operators come in.

use super::{
    At,
    file::tls,
    kind::{operator_token, or_off, word},
    secret::Source,
    section::{Kind, Report, Section, Set, mapping},
    surroundings::Surroundings,
    values,
    yaml::{Node, Value},
};
use crate::front;
use serde_json::json;
use std::net::SocketAddr;

const DEFAULT: &str = "127.0.0.1:8809";

/// What is written under `admin`, where it is not `off`.
pub(super) struct Written {
    pub(super) listen: At<SocketAddr>,
    pub(super) token: Set<Source>,
    pub(super) tls: Option<front::TlsPaths>,
    /// Whether `tls` is written, be it right or wrong.
    pub(super) has_tls: bool,
}

/// An address, a mapping, or `off`.
pub(super) fn operators(around: Surroundings<'_>) -> Kind<'_, Option<Written>> {
    let one = or_off(json!({ "type": "string", "examples": [DEFAULT, "off"] }), values::admin);
    let all = mapping("`admin`", move |s| Some(keys(s, around)));
    let (one_schema, one, all_schema, all) = (one.schema, one.read, all.schema, all.read);
    let read = move |node: &Node, report: &mut Report| match node.value {
        Value::Map(_) => all(node, report).map(Some),
        _ => one(node, report).map(|address| {
            address.map(|listen| Written { listen: At::new(node.place, listen), ..Written::default() })
        }),
    };
    Kind {
        schema: Box::new(move || json!({ "anyOf": [one_schema(), all_schema()] })),
        show: |admin| {
            admin.as_ref().map_or_else(|| "off".into(), |admin| admin.listen.value.to_string().into())
        },
        read: Box::new(read),
    }
}

fn keys(s: &mut Section<'_, '_>, around: Surroundings<'_>) -> Written {
    let address = word(json!({ "type": "string", "examples": [DEFAULT] }), values::address)
        .shown(|address| address.to_string().into());
    let listen = s.key("listen", "Admin listen address.").at(address, default());
    let token = s.key(
        "token",
        "Admin token (`Authorization: Bearer`), in a file or a variable. Changes require it; so does \
         reading if `listen` is not on loopback. Default: generated at start and written to a file whose \
         path is printed (`admin.token` beside the store, else below `$XDG_RUNTIME_DIR/deferral/`).",
    );
    let token = token.set(operator_token());
    let paths = s.key("tls", "TLS of the admin listener, which then serves HTTPS only. Default: plain HTTP.");
    let paths = paths.set(mapping("`tls`", |s| Some(tls(s, around))));
    Written { listen, token, has_tls: !paths.is_unset(), tls: paths.given().flatten() }
}

fn default() -> SocketAddr {
    DEFAULT.parse().expect("the default is an address")
}

// === impl Written ===

impl Default for Written {
    fn default() -> Self {
        Self { listen: At::unwritten(default()), token: Set::Unset, tls: None, has_tls: false }
    }
}
