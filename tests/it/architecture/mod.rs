//! Layers of folders, purity and import cycles; names and words ([`language`]).

mod language;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// What each folder may name. Read it from the bottom up.
const MAY_USE: &[(&str, &[&str])] = &[
    (
        "cli",
        &["app", "bridge", "client", "config", "demo", "policy", "protocol", "runtime", "store", "telemetry"],
    ),
    ("app", EVERYTHING),
    ("client", &["protocol"]),
    ("demo", &["protocol", "runtime"]),
    // The `Config` types of the parts: each part says what it needs, and none knows of a file.
    // `task` for what may stand in the words of a ticket.
    ("config", &["admin", "front", "policy", "protocol", "proxy", "store", "task", "telemetry", "upstream"]),
    // `front` for TLS and the sockets of clients that read nothing, `upstream` for what it shows of the servers.
    ("admin", &["front", "policy", "protocol", "proxy", "runtime", "store", "task", "telemetry", "upstream"]),
    // `upstream` for the types that `proxy::RouteService` speaks of.
    ("front", &["dialect", "policy", "protocol", "proxy", "runtime", "telemetry", "upstream"]),
    (
        "proxy",
        &["bridge", "dialect", "policy", "protocol", "runtime", "store", "task", "telemetry", "upstream"],
    ),
    ("upstream", &["dialect", "protocol", "runtime", "telemetry"]),
    ("store", &["protocol", "runtime", "task", "telemetry"]),
    // `runtime` for counts that threads do not share.
    ("telemetry", &["protocol", "runtime"]),
    ("runtime", &["protocol"]),
    ("bridge", &["dialect", "policy", "protocol", "task"]),
    ("policy", &["protocol"]),
    ("task", &["protocol"]),
    ("dialect", &["protocol"]),
    ("protocol", &[]),
    ("manual", &[]),
];
const EVERYTHING: &[&str] = &["*"];

/// Folders that know nothing of sockets, files, clocks, chance or tasks on a runtime.
const PURE: &[&str] = &["bridge", "dialect", "policy", "protocol", "task"];
/// All of the standard library and of other crates that those may name: what holds or computes values.
const HARMLESS: &[&str] = &[
    "base64",
    "bytes",
    "http",
    "itoa",
    "jiff::Timestamp",
    "jiff::civil",
    "memchr",
    "ring::aead",
    "ring::digest",
    "ring::hmac",
    "serde",
    "serde_json",
    "smallvec",
    "std::borrow",
    "std::char",
    "std::collections",
    "std::fmt",
    "std::hash",
    "std::iter",
    "std::mem",
    "std::net::IpAddr",
    "std::num",
    "std::ops",
    "std::str",
    "std::sync::Arc",
    // A constant that the compiler cannot make: an empty map of headers.
    "std::sync::LazyLock",
    "std::time::Duration",
    // A moment that was handed in; what reads the clock is banned by `clippy.toml`.
    "std::time::Instant",
    "subtle",
    "thiserror",
    // For the tests beside the code.
    "expect_test",
    "proptest",
];

/// What makes the words of 2026-07-28 of a legacy server's, and asks whether a server is one.
const RAISING: &[&[&str]] =
    &[&["dialect", "translate"], &["CallResponse", "translated"], &["upstream", "legacy"]];

/// Folders without large circles, and the most files of each that may name each other in one.
const WITHOUT_CIRCLES: &[(&str, usize)] = &[
    ("admin", 7),
    ("app", 4),
    ("bridge", 4),
    ("cli", 3),
    ("client", 4),
    ("config", 2),
    ("demo", 4),
    ("dialect", 4),
    ("front", 4),
    ("policy", 4),
    ("protocol", 4),
    ("proxy", 4),
    ("runtime", 4),
    ("store", 4),
    ("task", 4),
    ("telemetry", 4),
    ("upstream", 4),
];
/// Declares keys and reads the file without knowing what they are for; `config::build` does.
const SCHEMA_LAYER: &str = "config::schema";
/// The words by which one asks which era or revision a peer is of.
const ERA: &[&str] = &["Era", "Revision", "PROTOCOL_VERSION"];
/// Who may, beside `protocol`, whose words they are, and the programs that are peers themselves. All others rely on
/// what has been decided: the type of a call, the form of a driven one, what a client or a server can do.
const MAY_ASK_THE_ERA: &[(&str, &str)] = &[
    (
        "bridge/offer.rs",
        "a handshake that goes by: tasks are offered where it agrees on a revision that has them",
    ),
    ("dialect/legacy.rs", "reads the revision that a request, a handshake or its answer names"),
    ("dialect/modern.rs", "reads the revision that a request names, and refuses any but its own"),
    ("front/responses.rs", "a refusal says which revision is spoken"),
    ("front/dispatch.rs", "decides who speaks, once for each request"),
    ("front/layers/span.rs", "the span of a request says which revision it names"),
    ("front/layers/access_entry.rs", "the access line says what has been decided"),
    ("proxy/legacy/task_capability.rs", "a handshake that goes by: what it agrees on is remembered"),
    ("proxy/server_profile.rs", "decides what a server can do, once for each server"),
    ("proxy/session/client.rs", "decides which revision a legacy client is of, once for each request"),
    (
        "upstream/http/session.rs",
        "what our own handshake came to: the header of its session, and how that ends",
    ),
    (
        "upstream/legacy/emulated/initialize.rs",
        "the handshake of a hosted session: which revision it agrees on",
    ),
    (
        "upstream/legacy/handshake.rs",
        "a refusal of our handshake may say what the server speaks, and a process is asked for it",
    ),
    ("upstream/legacy/message.rs", "the revision that our own handshake asks for"),
    (
        "upstream/legacy/negotiation.rs",
        "which revision our own handshake asks for, where a server refuses the newest",
    ),
];
/// What implements `Upstream`, or what those parts are made of.
const BELOW_THE_INTERFACE: &[&str] =
    &["HttpUpstream", "StdioUpstream", "create", "duplex", "http", "http1", "legacy", "stdio", "transport"];
const PEERS: &[&str] = &["cli", "client", "demo", "protocol"];

#[test]
fn folders_depend_downward() {
    let allowed: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let mut stray = Vec::new();
    for_each_source(|folder, file, text| {
        let allowed = allowed.get(folder).unwrap_or_else(|| panic!("say in MAY_USE what {folder} may use"));
        for path in paths(text) {
            let Some(named) = path.strip_prefix("crate::").and_then(|rest| rest.split("::").next()) else {
                continue;
            };
            if named != folder && !allowed.contains(&named) && *allowed != EVERYTHING {
                stray.push(format!("{file} names crate::{named}"));
            }
        }
    });
    assert!(stray.is_empty(), "these point the wrong way:\n{}", stray.join("\n"));
}

#[test]
fn the_core_is_pure() {
    let crates = crates();
    let mut stray = Vec::new();
    for_each_source(|folder, file, text| {
        if !PURE.contains(&folder) {
            return;
        }
        let strays = paths(text).into_iter().filter(|path| is_foreign(path, &crates) && !is_harmless(path));
        stray.extend(strays.map(|path| format!("{file} names {path}")));
    });
    assert!(
        stray.is_empty(),
        "the outside world comes in as arguments here; what only computes belongs in HARMLESS:\n{}",
        stray.join("\n")
    );
}

/// What writes to a stream of the process, or draws on a terminal.
const WRITES: &[&str] =
    &["println!", "print!", "eprintln!", "eprint!", "dbg!", "io::stdout", "io::stderr", "indicatif"];
/// Who may: the one printer of the commands, which makes foreign text harmless, and the log, which does so itself.
const MAY_WRITE: &[&str] = &["cli/printer.rs", "telemetry/log.rs"];

#[test]
fn only_the_printer_and_the_log_write_to_a_terminal() {
    let mut stray = Vec::new();
    let mut printers = 0;
    for_each_source(|_, file, text| {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        // To ask whether it is a terminal writes nothing.
        let code = code.filter(|line| !line.contains(".is_terminal()"));
        let written: Vec<_> =
            code.filter(|line| WRITES.iter().any(|word| line.contains(word))).map(str::to_owned).collect();
        match MAY_WRITE.contains(&file) {
            true => printers += usize::from(!written.is_empty()),
            false => stray.extend(written.iter().map(|line| format!("{file}: {}", line.trim()))),
        }
    });
    assert!(stray.is_empty(), "print by cli::printer::Printer:\n{}", stray.join("\n"));
    assert_eq!(printers, MAY_WRITE.len());
}

#[test]
fn unlisted_paths_are_not_pure() {
    let crates = crates();
    let strays = |path: &str| is_foreign(path, &crates) && !is_harmless(path);
    for worldly in [
        "std::os::unix::net::UnixStream",
        "std::io::stdout",
        "core::hint",
        "mimalloc::MiMalloc",
        "rustix::fs",
    ] {
        assert!(strays(worldly), "{worldly}");
    }
    for pure in [
        "std::fmt::Display",
        "serde_json::Value",
        "crate::protocol::Frame",
        "Self::new",
        "frame::parse",
        "tokio",
    ] {
        assert!(!strays(pure), "{pure}");
    }
}

#[test]
fn the_table_has_no_circle() {
    // A folder may only name those that stand below it.
    let below = |at: usize| MAY_USE[at + 1..].iter().map(|(folder, _)| *folder).collect::<Vec<_>>();
    for (at, (folder, named)) in MAY_USE.iter().enumerate() {
        for name in named.iter().filter(|name| **name != "*") {
            assert!(below(at).contains(name), "{folder} may use {name}, which stands above it");
        }
    }
}

#[test]
fn few_files_of_a_folder_name_each_other_in_a_circle() {
    let mut modules: BTreeMap<String, Module> = BTreeMap::new();
    for_each_source(|_, file, text| drop(modules.insert(module_of(file), Module::read(text))));
    let mut large = Vec::new();
    for (folder, few) in WITHOUT_CIRCLES {
        let found = circles(&modules, folder);
        let largest = found.iter().map(BTreeSet::len).max().unwrap_or(0);
        println!("{folder}: the largest circle has {largest} files");
        large.extend(found.into_iter().filter(|circle| circle.len() > *few));
    }
    assert!(large.is_empty(), "these name each other in circles that are too large: {large:#?}");
}

#[test]
fn the_schema_layer_of_the_configuration_knows_no_part_of_the_proxy() {
    let mut modules: BTreeMap<String, Module> = BTreeMap::new();
    for_each_source(|_, file, text| drop(modules.insert(module_of(file), Module::read(text))));
    let (mut files, mut stray) = (0, Vec::new());
    for (module, Module { names, hands_on }) in &modules {
        if !is_below(module, SCHEMA_LAYER) {
            continue;
        }
        files += 1;
        for path in names.iter().chain(hands_on) {
            let holder = holder(&modules, module, path);
            let is_outside = holder.is_none() && path.starts_with("crate::");
            if is_outside || holder.is_some_and(|holder| !is_below(&holder, SCHEMA_LAYER)) {
                stray.push(format!("{module} names {path}"));
            }
        }
    }
    assert!(files > 1, "the schema layer is elsewhere");
    assert!(stray.is_empty(), "what knows the parts belongs in config::build:\n{}", stray.join("\n"));
}

#[test]
fn a_circle_is_seen_through_names_that_are_handed_on() {
    let modules: BTreeMap<_, _> = [
        ("a", "mod b; mod c; mod d;\npub use b::{B, other};\npub use crate::z::Z;\npub struct A;"),
        ("a::b", "use super::c::C; use super::A;"),
        ("a::c", "use super::B; fn f() { super::d::g() }\n#[cfg(test)]\nmod tests { use crate::a::d::e; }"),
        ("a::d", "use crate::a::{A, Z, e};\npub(in crate::a::b) fn g() {}"),
        ("z", "use crate::a::A;"),
    ]
    .into_iter()
    .map(|(name, text)| (name.to_owned(), Module::read(text)))
    .collect();
    let found = circles(&modules, "a");
    assert_eq!(found, [BTreeSet::from(["a::b".to_owned(), "a::c".to_owned()])]);
}

#[test]
fn the_reader_of_paths_sees_through_braces_and_past_comments() {
    let text = "
        use crate::{self, a::{B, c::*}, d, e as other};
        // not crate::comment
        /// nor [`crate::link`]
        fn f() -> std::net::IpAddr { tokio :: select! {} ; x::y::<Z>() ; 'c' }
        use super::{g}; // crate::comment
        use crate::after;
    ";
    let named: Vec<_> = paths(text).into_iter().filter(|path| path.contains("::")).collect();
    let wanted =
        "crate::a::B crate::a::c crate::d crate::e std::net::IpAddr tokio::select x::y super::g crate::after";
    assert_eq!(named.join(" "), wanted);
}

#[test]
fn one_loop_drives_every_call() {
    // An exchange that is waited for asks for the time: whoever does that drives a call.
    let mut driven = Vec::new();
    for_each_source(|_, file, text| {
        driven.extend(text.matches("exchange.poll_timeout()").map(|_| file.to_owned()));
    });
    assert_eq!(driven, ["proxy/drive/mod.rs"]);
}

#[test]
fn the_interface_of_a_server_names_nothing_that_implements_it() {
    let mut found = 0;
    for_each_source(|_, file, text| {
        if file == "upstream/mod.rs" {
            let lines = text.lines().count();
            assert!(lines < 60, "{file} lists the modules and what they export: {lines} lines");
        }
        if file != "upstream/api.rs" {
            return;
        }
        found += 1;
        let below = |path: &String| {
            let path = path.strip_prefix("crate::upstream::").or_else(|| path.strip_prefix("super::"));
            path.is_some_and(|path| {
                BELOW_THE_INTERFACE.contains(&path.split("::").next().unwrap_or_default())
            })
        };
        let stray: Vec<_> = paths(text).into_iter().filter(below).collect();
        assert!(stray.is_empty(), "{file} names what implements it: {stray:?}");
        assert!(text.lines().count() <= 400, "{file} is read first");
    });
    assert_eq!(found, 1);
}

#[test]
fn above_upstream_no_module_knows_the_servers_era() {
    let mut stray = Vec::new();
    for_each_source(|folder, file, text| {
        let raises = ["upstream", "dialect"].contains(&folder) || file == "internals.rs";
        let named = paths(text).into_iter().filter(|path| {
            let words = path.split("::").collect::<Vec<_>>();
            RAISING.iter().any(|name| words.windows(name.len()).any(|part| part == *name))
        });
        stray.extend(named.filter(|_| !raises).map(|path| format!("{file} names {path}")));
    });
    assert!(stray.is_empty(), "messages are raised below `Upstream`:\n{}", stray.join("\n"));
}

#[test]
fn the_era_is_read_only_where_it_is_decided() {
    let mut asking = BTreeSet::new();
    for_each_source(|folder, file, text| {
        let asks = |path: String| path.split("::").any(|word| ERA.contains(&word));
        if !PEERS.contains(&folder)
            && !file.ends_with("/tests.rs")
            && paths(without_tests(text)).into_iter().any(asks)
        {
            asking.insert(file.to_owned());
        }
    });
    let allowed: BTreeSet<_> = MAY_ASK_THE_ERA.iter().map(|(file, _)| (*file).to_owned()).collect();
    let new: Vec<_> = asking.difference(&allowed).collect();
    assert!(new.is_empty(), "the era has been decided before these: {new:?}");
    let left: Vec<_> = allowed.difference(&asking).collect();
    assert!(left.is_empty(), "these ask no more, and leave MAY_ASK_THE_ERA: {left:?}");
}

/// What a file names, and what it hands on.
struct Module {
    names: Vec<String>,
    /// Of items that are another module's.
    hands_on: Vec<String>,
}

// === impl Module ===

impl Module {
    fn read(text: &str) -> Self {
        let text = without_tests(text);
        let (mut own, mut handed_on, mut within) = (String::new(), String::new(), false);
        for line in text.lines() {
            // Who may see an item is not whom it names.
            let seen_in =
                line.split_once("pub(in ").and_then(|(before, rest)| Some((before, rest.split_once(')')?.1)));
            let line = seen_in.map_or_else(|| line.to_owned(), |(before, rest)| format!("{before}pub{rest}"));
            within |= line.starts_with("pub") && line.split_whitespace().any(|word| word == "use");
            let to = if within { &mut handed_on } else { &mut own };
            to.push_str(&line);
            to.push('\n');
            within &= !line.ends_with(';');
        }
        Self { names: paths(&own), hands_on: paths(&handed_on) }
    }
}

/// Tests beside the code may name what they like.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// `proxy::legacy` of `proxy/legacy/mod.rs`, `proxy::reply` of `proxy/reply/mod.rs`.
fn module_of(file: &str) -> String {
    let path = file.trim_end_matches(".rs").replace('/', "::");
    path.strip_suffix("::mod").map_or_else(|| path.clone(), str::to_owned)
}

/// The file that holds what `path` names in `module`, whoever hands it on; `Missing` of what is no file's here.
fn holder(modules: &BTreeMap<String, Module>, module: &str, path: &str) -> Option<String> {
    let (first, rest) = path.split_once("::")?;
    let path = match first {
        "crate" => rest.to_owned(),
        "self" => format!("{module}::{rest}"),
        "super" => {
            let above = module.rsplit_once("::")?.0;
            if rest.starts_with("super::") {
                return holder(modules, above, rest);
            }
            format!("{above}::{rest}")
        }
        _ if modules.contains_key(&format!("{module}::{first}")) => format!("{module}::{path}"),
        _ => return None,
    };
    let mut file = path.as_str();
    while !modules.contains_key(file) {
        file = file.rsplit_once("::")?.0;
    }
    let item = path[file.len()..].split("::").nth(1).unwrap_or_default();
    let mut handed_on = modules[file].hands_on.iter();
    match handed_on.find(|path| path.rsplit("::").next() == Some(item)) {
        Some(path) => holder(modules, file, path),
        None => Some(file.to_owned()),
    }
}

/// Files of a folder that all lead to one another.
fn circles(modules: &BTreeMap<String, Module>, folder: &str) -> Vec<BTreeSet<String>> {
    let within = |module: &str| is_below(module, folder);
    let named = |module: &String| -> BTreeSet<String> {
        let holders = modules[module].names.iter().filter_map(|path| holder(modules, module, path));
        holders.filter(|holder| within(holder) && holder != module).collect()
    };
    let named: BTreeMap<_, _> = modules
        .keys()
        .filter(|module| within(module))
        .map(|module| (module.clone(), named(module)))
        .collect();
    let reached = |from: &String| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(named[module].iter().filter(|named| reached.insert((*named).clone())));
        }
        reached
    };
    let reached: BTreeMap<_, _> = named.keys().map(|module| (module, reached(module))).collect();
    let circle = |module: &String| -> BTreeSet<String> {
        reached[module].iter().filter(|other| reached[other].contains(module)).cloned().collect()
    };
    let found: BTreeSet<_> = named.keys().map(circle).filter(|circle| !circle.is_empty()).collect();
    found.into_iter().collect()
}

/// Whether `path` leads out of this crate. A single word does not: it is some local name.
fn is_foreign(path: &str, crates: &[String]) -> bool {
    path.split_once("::").is_some_and(|(first, _)| crates.iter().any(|name| name == first))
}

fn is_harmless(path: &str) -> bool {
    HARMLESS.iter().any(|name| is_below(path, name))
}

/// Everything a path can begin with that is not of this crate: the standard library, and the
/// dependencies.
fn crates() -> Vec<String> {
    let manifest = include_str!("../../../Cargo.toml");
    let sections = manifest.split("\n[").filter_map(|section| section.split_once("]\n"));
    let dependencies =
        sections.filter(|(name, _)| name.ends_with("dependencies")).flat_map(|(_, lines)| lines.lines());
    let named = dependencies.filter_map(|line| Some(line.split_once(" = ")?.0.replace('-', "_")));
    named.chain(["std", "core", "alloc"].map(str::to_owned)).collect()
}

/// Whether `path` is `name` or something in it.
fn is_below(path: &str, name: &str) -> bool {
    path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Every path that is named in code: `a::{b, c::d}` is `a::b` and `a::c::d`. Comments may name what
/// they like.
fn paths(text: &str) -> Vec<String> {
    let uncommented = |line: &'_ str| match line {
        _ if line.trim_start().starts_with("//") => String::new(),
        _ => line.split(" // ").take(1).collect(),
    };
    let code = text.lines().map(uncommented).collect::<Vec<_>>().join("\n");
    let mut tokens = Tokens(&code);
    let mut found = Vec::new();
    while let Some(token) = tokens.next() {
        if is_word(token) {
            tokens.path(token.to_owned(), &mut found);
        }
    }
    found
}

/// Just enough of Rust's tokens to tell paths: words, `::`, and anything else one character at a time.
struct Tokens<'a>(&'a str);

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.0 = self.0.trim_start();
        let first = self.0.chars().next()?;
        let length = match first {
            _ if self.0.starts_with("::") => 2,
            _ if is_word(self.0) => {
                self.0.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.0.len())
            }
            other => other.len_utf8(),
        };
        let (token, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(token)
    }

    /// Whether `wanted` comes next; if so it is taken.
    fn take(&mut self, wanted: &str) -> bool {
        let rest = self.0.trim_start().strip_prefix(wanted);
        if let Some(rest) = rest {
            self.0 = rest;
        }
        rest.is_some()
    }

    /// What follows the beginning of a path, up to where it ends or branches.
    fn path(&mut self, mut path: String, found: &mut Vec<String>) {
        while self.take("::") {
            if self.take("{") {
                return self.branches(&path, found);
            }
            let rest = self.0.trim_start();
            if !is_word(rest) {
                break;
            }
            let word = self.next().expect("a word comes next");
            path = format!("{path}::{word}");
        }
        found.push(path);
    }

    fn branches(&mut self, stem: &str, found: &mut Vec<String>) {
        while let Some(token) = self.next() {
            match token {
                "}" => return,
                "self" => found.push(stem.to_owned()),
                "as" => drop(self.next()),
                _ if is_word(token) => self.path(format!("{stem}::{token}"), found),
                _ => {}
            }
        }
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Visits every source file that lies in a folder: the folder, the file's path, its text.
fn for_each_source(mut visit: impl FnMut(&str, &str, &str)) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let file = path.strip_prefix(&root).expect("below src").to_string_lossy().into_owned();
            if let Some((top, name)) = file.split_once('/')
                && name.ends_with(".rs")
            {
                visit(top, &file, &fs::read_to_string(&path).expect("utf-8"));
            }
        }
    }
}
