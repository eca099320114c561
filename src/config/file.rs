//! The keys of the file, each in one place: its name, its description, what it may be, its default, and what it
//! sets.
//!
//! The descriptions are what `deferral check --schema` shows, the defaults those of the parts themselves. What
//! only shows when keys are looked at together is judged by `together`.
//!
//! Here are those of the top level and of what belongs to the front; `route` has a route's, `server` those of the
//! server behind it, `limits` those of `limits` and `timeouts`.

use super::{
    At, Config, DEFAULT_DRAIN, Files, Log, Ready, Settings, Store, Warnings,
    kind::{
        addresses, drain, key_place, key_source, log, or_off, required, store, string, text, token_source,
        url,
    },
    limits::{limits, timeouts},
    operators::{self, operators},
    route::route,
    secret,
    section::{Section, Set, list, mapping},
    surroundings::Surroundings,
    telemetry::{telemetry, traces},
    together::{self, private_key},
    values,
};
use crate::{
    front,
    policy::{self, Access},
};
use serde_json::json;

pub const DEFAULT_LISTEN: &str = "127.0.0.1:8808";
pub const DEFAULT_PATH: &str = "/mcp";

/// The whole file, read in these surroundings.
pub(super) fn file(s: &mut Section<'_, '_>, around: Surroundings<'_>) -> Config {
    let listen = s
        .key(
            "listen",
            "Where clients come in: an IP address with a port, or a list of them. Port 0 takes a free one.",
        )
        .at(addresses(), vec![At::unwritten(DEFAULT_LISTEN.parse().expect("the default is an address"))]);
    let admin = s
        .key(
            "admin",
            "Where operators come in: an address, a mapping that also says with which token and over TLS, or `off`.",
        )
        .at(operators(around), Some(operators::Written::default()));
    let scrape = s
        .key(
            "metrics",
            "Address at which scrapers get `/metrics` over plain HTTP and without a token, and nothing else is served; \
             or `off`. The admin listener serves them in any case.",
        )
        .with_default("off")
        .set(or_off(json!({ "type": "string", "examples": ["0.0.0.0:9464", "off"] }), values::admin));
    let metrics = together::metrics(scrape, &listen, &admin, s);
    let admin = together::operators(admin, &listen, around, s);
    let limits = s.key("limits", "How much of everything there may be.").section("`limits`", limits);
    let timeouts = s.key("timeouts", "How long to wait for what.").section("`timeouts`", timeouts);
    let public_url = s
        .key(
            "public_url",
            "The scheme and host under which clients know the proxy, where something stands in front of it.",
        )
        .set(url(values::public_url));
    // Clients come from elsewhere, or something on the same machine stands in front of us: else they are one
    // person's.
    let is_exposed = matches!(public_url, Set::To(_))
        || listen.value.iter().any(|address| !address.value.ip().to_canonical().is_loopback());
    let access = s.key("access", "Who may come in.").section("`access`", |s| access(s, around));
    // To those who need a token nothing is open.
    let needs_token = access.needs_token;
    let is_exposed = is_exposed && !needs_token;
    let routes = s.key("routes", "The endpoints of the proxy and the servers behind them.").required(
        list(mapping("a route", |s| Some(route(s, &limits, &timeouts, is_exposed, needs_token, around))))
            .some(),
    );
    let telemetry =
        s.key("telemetry", "What is told of what happens, beside the log.").section("`telemetry`", telemetry);
    let health = s
        .key(
            "health",
            "Path on the clients' listeners at which GET is answered with 200 or 503 as at `/ready`, without a token; \
             or `off`.",
        )
        .with_default("off")
        .set(or_off(json!({ "type": "string", "examples": ["/healthz", "off"] }), values::health));
    let ready = s.key("ready", "What `/ready` of the operator's address needs.").section("`ready`", ready);
    let health = together::health(health, &routes, s);
    Config {
        admin,
        metrics,
        store: s
            .key("store", "Where tasks are kept: `memory`, where they end with the process, or a folder that outlives it, as in `{ disk: ./data }`.")
            .or(store(around), Store::Memory),
        quotas: limits.quotas,
        state_keys: s
            .key(
                "request_state",
                "What the `requestState`s of questions are sealed with. Left out, a key is made at start: the \
                 states end with the process, and no other process understands them.",
            )
            .section("`request_state`", |s| state_keys(s, around)),
        connections: limits.connections,
        drain: s
            .key(
                "drain",
                "How long calls in flight may go on after the signal to stop, as in `30s`; or a mapping that also says \
                 for how long new ones are served before that, as in `{ notice: 5s, limit: 30s }`.",
            )
            .or(drain(), DEFAULT_DRAIN),
        log: s
            .key(
                "log",
                "How the log is written, on the standard error: `text` or `json`; or a mapping that also says what of it.",
            )
            .or(log(), Log::default()),
        ready,
        traces: traces(telemetry, around, s),
        settings: Settings::default(),
        warnings: Warnings::default(),
        files: Files::default(),
        routes: together::routes(routes, s),
        front: front::Config {
            listen: listen.value.into_iter().map(|address| address.value).collect(),
            tls: s.key("tls", "Serve HTTPS.").section("`tls`", |s| tls(s, around)),
            access: access.access,
            tokens: access.tokens,
            limits: limits.front,
            timeouts: timeouts.front,
            public_url: public_url.given(),
            health: health.map(|path| front::Health { path, needs_servers: ready.needs_servers }),
        },
    }
}

/// What HTTPS is served with.
pub(super) fn tls(s: &mut Section<'_, '_>, around: Surroundings<'_>) -> Option<front::TlsPaths> {
    let cert = s.key("cert", "The certificate chain, the server's own first.").required(text());
    let key = s.key("key", "The private key of the first certificate: its file, or `{ env: NAME }`.");
    let key = key.required(key_place());
    for (key, unset) in [("cert", cert.is_unset()), ("key", key.is_unset())] {
        if unset && s.is_written() {
            s.wrong(s.place, format!("`tls` has no `{key}`; name a PEM file"));
        }
    }
    let (Set::To(cert), Some(key)) = (cert, private_key(key, around, s)) else { return None };
    let Surroundings { folder, look, .. } = around;
    let paths = front::TlsPaths { cert: folder.join(cert.value), key: key.value };
    if look && let Err(error) = paths.check() {
        let place = match &error {
            front::TlsError::Cert { .. } | front::TlsError::NoCert { .. } => cert.place,
            front::TlsError::Key { .. } => key.place,
            front::TlsError::Pair { .. } => s.place,
        };
        s.wrong(place, error.to_string());
    }
    Some(paths)
}

fn ready(s: &mut Section<'_, '_>) -> Ready {
    let upstream = s.key(
        "upstream",
        "`required`: `/ready` says 503 while a route's server cannot be reached, as far as that is known; one that was not \
         called yet, or could not be, is asked every 5 s.",
    );
    Ready { needs_servers: upstream.or(required(), false) }
}

fn state_keys(s: &mut Section<'_, '_>, around: Surroundings<'_>) -> Vec<secret::Key> {
    let keys = s
        .key(
            "keys",
            "Where the keys are, each 32 bytes as 64 hex digits or base64. The first seals, each opens: to change \
             keys, put the new one first, and take the old one out later than `park`. Replicas share theirs.",
        )
        .required(list(key_source()).some());
    together::keys(keys, around, s)
}

/// What `access` sets.
struct WhoMayComeIn {
    access: Access,
    tokens: policy::Tokens,
    /// Whether `tokens` is written, be it right or wrong.
    needs_token: bool,
}

/// `localhost` and IP addresses may always be named as host.
fn access(s: &mut Section<'_, '_>, around: Surroundings<'_>) -> WhoMayComeIn {
    let hosts = s.key("hosts", "Host names that clients may use, or `*` for every one.");
    let hosts = hosts.list(string(values::host));
    let origins = s.key("origins", "Origins whose pages may call, or `*` for every one.");
    let origins = origins.list(string(values::origin));
    let plain = |list: Vec<At<String>>| list.into_iter().map(|at| at.value).collect();
    let tokens = s
        .key(
            "tokens",
            "The tokens by which clients are known (`Authorization: Bearer`), each in a file or a variable. A caller is \
             then the token's name; somebody may have several, the new one beside the old. Left out, nobody is asked \
             for one.",
        )
        .set(list(token_source()).some());
    WhoMayComeIn {
        access: Access { hosts: plain(hosts), origins: plain(origins) },
        needs_token: !tokens.is_unset(),
        tokens: together::tokens(tokens, around, s),
    }
}
