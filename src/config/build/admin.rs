//! The keys of `admin`, the admin listener.

use super::tls::read_tls;
use crate::{
    admin,
    config::schema::{
        LoadContext, SectionReader, Setting, SpannedValue, ValueType, address, mapping, or_off, secret_only,
        secret_source, values,
    },
    front,
    policy::TokenSet,
};
use serde_json::json;
use std::net::SocketAddr;

/// The default address of the admin listener.
const DEFAULT_ADMIN: &str = "127.0.0.1:8809";
/// The name of the admin token.
const ADMIN_TOKEN_NAME: &str = "operator";

/// The values of the keys of `admin`, unless it is `off`.
struct AdminKeys {
    listen: SpannedValue<SocketAddr>,
    token: Setting<TokenSet>,
    /// `None` if it is invalid.
    tls: Setting<Option<front::TlsPaths>>,
}

/// Reads `admin`, which must not be an address of `listen`, and is not reachable from other machines without
/// TLS and a token. `None` if the listener is off.
pub(super) fn read_admin(
    s: &mut SectionReader<'_, '_>,
    listen: &[SpannedValue<SocketAddr>],
    context: LoadContext<'_>,
) -> Option<admin::Config> {
    let AdminKeys { listen: address, token, tls } = s
        .key("admin", "Admin listen address; or a mapping that also sets a token and TLS; or `off`. The admin listener serves the admin page, health checks and metrics, and the commands `deferral tasks`, `explain`, `report`, `tap` and `ready` connect to it.")
        .read_or(admin_type(context), Some(AdminKeys::at_address(default_address())))?;
    // Addresses with port 0 are never the same: each gets a port of its own.
    let is_same =
        |other: &&SpannedValue<SocketAddr>| other.value == address.value && address.value.port() != 0;
    if let Some(same) = listen.iter().find(is_same) {
        let (span, address) = (if address.is_written() { address.span } else { same.span }, address.value);
        s.add_problem(span, format!("`admin` and `listen` are both {address}; choose another port for one of them, or set `admin: off`"));
    }
    let missing = match (tls.is_unset(), token.is_unset()) {
        (false, false) => None,
        (true, false) => Some("`tls`"),
        (false, true) => Some("a `token`"),
        (true, true) => Some("`tls` and a `token`"),
    };
    let admin = admin::Config {
        tokens: token.ok().unwrap_or_default(),
        tls: tls.ok().flatten(),
        ..admin::Config::at_address(address.value)
    };
    if let Some(missing) = missing.filter(|_| admin.is_exposed()) {
        let SpannedValue { span, value: address } = address;
        s.add_problem(
            span,
            format!(
                "`admin` at {address} is reachable from other machines, which requires {missing}: write \
                 `admin: {{ listen: \"{address}\", token: {{ file: PATH }}, tls: {{ cert: PATH, key: PATH \
                 }} }}`, or listen on loopback"
            ),
        );
    }
    Some(admin)
}

/// The type of `admin`: an address, a mapping, or `off`.
fn admin_type(context: LoadContext<'_>) -> ValueType<'_, Option<AdminKeys>> {
    or_off(json!({ "type": "string", "examples": [DEFAULT_ADMIN, "off"] }), values::address_or_off)
        .and_then(|address, node, _| {
            Some(address.map(|listen| AdminKeys::at_address(SpannedValue::new(node.span, listen))))
        })
        .or_mapping(mapping("`admin`", move |s| Some(Some(read_admin_keys(s, context)))))
        .show_with(|admin| {
            admin.as_ref().map_or_else(|| "off".into(), |admin| admin.listen.value.to_string().into())
        })
}

fn read_admin_keys(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> AdminKeys {
    let token = secret_only("a token", secret_source("a token", "the token"));
    let token = token.and_then(move |source, node, report| {
        let token = report.accept(node.span, source.read_token(context))?;
        Some(TokenSet::new([(ADMIN_TOKEN_NAME.into(), token.expose().as_str())]))
    });
    AdminKeys {
        listen: s
            .key("listen", "Admin listen address. On an address beyond loopback `tls` and `token` are required; without them the configuration is refused.")
            .read_spanned_or(address([DEFAULT_ADMIN]), default_address().value),
        token: s
            .key("token", "Admin token (`Authorization: Bearer`), in a file or a variable. Requests need it for changes and for `/tap`; if `listen` is beyond loopback, for everything except `/live` and `/ready`. Default: generated at each start and written to the file `admin.token` in the parent folder of a store on disk, or else in `$XDG_RUNTIME_DIR/deferral/`.")
            .read(token),
        tls: s
            .key("tls", "TLS of the admin listener, which then serves HTTPS only. Default: plain HTTP.")
            .read(mapping("`tls`", move |s| Some(read_tls(s, context)))),
    }
}

fn default_address() -> SpannedValue<SocketAddr> {
    SpannedValue::default_value(DEFAULT_ADMIN.parse().expect("the default is an address"))
}

// === impl AdminKeys ===

impl AdminKeys {
    const fn at_address(listen: SpannedValue<SocketAddr>) -> Self {
        Self { listen, token: Setting::Unset, tls: Setting::Unset }
    }
}
