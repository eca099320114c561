//! The keys of `access`: hosts, origins, tokens.

use crate::{
    config::schema::{
        LoadContext, SecretSource, SecretToken, SectionReader, Setting, SpannedValue, ValueResult, ValueType,
        invalid, list, mapping, read_source, secret::is_key, secret_only, string,
    },
    policy::{AccessPolicy, TokenSet},
};

/// Maximum length of a token name, in bytes: the name is a part of every access log line of its client.
const MAX_TOKEN_NAME: usize = 64;

/// The values of the keys of `access`.
pub(super) struct AccessKeys {
    pub(super) access: AccessPolicy,
    pub(super) tokens: TokenSet,
    /// Whether `tokens` is written, valid or not.
    pub(super) needs_token: bool,
}

/// The name of a client's token, and its location.
struct TokenSource {
    name: String,
    source: SecretSource,
}

/// Reads `access`.
pub(super) fn read_access(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> AccessKeys {
    s.key("access", "Access control for client requests: hosts, origins, tokens.")
        .read_section("`access`", |s| read_access_keys(s, context))
}

fn read_access_keys(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> AccessKeys {
    let hosts = s
        .key("hosts", "Host names by which clients reach the proxy, or `*` for any. Requests with another `Host` get 403 (protection against DNS rebinding). `localhost` and IP addresses are always allowed.")
        .read_list(string(host));
    let origins = s
        .key("origins", "Origins of web pages that may send requests, as in `https://app.example.com`, or `*` for any. Always allowed are pages of the names in `hosts` (not by its `*`), of `localhost`, and of loopback addresses. Other origins get 403. Requests without `Origin` do not come from web pages and are not affected.")
        .read_list(string(origin));
    let without_spans = |list: Vec<SpannedValue<String>>| list.into_iter().map(|at| at.value).collect();
    let tokens = s
        .key("tokens", "Bearer tokens of clients (`Authorization: Bearer`), each in a file or a variable. Requests without a valid token get 401. The name of the token is the principal of the request; several tokens may have one name, for rotation. The token is not forwarded to the server. Default: no token is required.")
        .read(list(token_source()).non_empty("`tokens` is empty; add a token, or remove the key if no token is required"));
    AccessKeys {
        access: AccessPolicy { hosts: without_spans(hosts), origins: without_spans(origins) },
        needs_token: !tokens.is_unset(),
        tokens: check_tokens(tokens, context, s),
    }
}

/// Reads the tokens of clients. Each invalid or repeated token is a problem of its own.
fn check_tokens(
    written: Setting<Vec<SpannedValue<TokenSource>>>,
    context: LoadContext<'_>,
    s: &mut SectionReader<'_, '_>,
) -> TokenSet {
    let sources = written.ok().unwrap_or_default();
    let read = |SpannedValue { span, value: TokenSource { name, source } }| {
        let token = s.accept(span, source.read_token(context))?;
        Some((name, SpannedValue::new(span, token)))
    };
    let (names, tokens): (Vec<String>, Vec<SpannedValue<SecretToken>>) =
        sources.into_iter().filter_map(read).unzip();
    let tokens = s.reject_repeated(tokens, |_, line| {
        format!("this token is listed already{line}; give each client its own")
    });
    TokenSet::new(
        names.iter().map(|name| name.as_str().into()).zip(tokens.iter().map(|token| token.expose().as_str())),
    )
}

/// The name of a client's token and its source, never the token itself.
fn token_source() -> ValueType<'static, TokenSource> {
    let token = mapping("a token", |s| {
        let name = s
            .key("name", "Principal of requests with this token, shown in the log. When a token is rotated, the new one keeps the name.")
            .read_required(string(token_name));
        if name.is_unset() {
            s.add_problem(s.span, "the token has no `name`; name its principal, as in `name: alice`");
        }
        let source = read_source(s, "the token");
        Some(TokenSource { name: name.ok()?, source: source? })
    });
    secret_only("a token", token)
}

/// Parses the name of a token, which is shown in the log.
fn token_name(text: &str) -> ValueResult<String> {
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    match (1..=MAX_TOKEN_NAME).contains(&text.len()) && text.bytes().all(is_name_byte) {
        _ if is_key(text) => invalid("must be a name for the token, not the token itself"),
        true => Ok(text.to_owned()),
        false => invalid(format!(
            "must be 1 to {MAX_TOKEN_NAME} letters, digits, `.`, `_`, `-` or `@`, as in `alice`"
        )),
    }
}

/// Parses a host name that clients may use, or `*`.
///
/// # Errors
/// The text is more than a host name.
pub fn host(text: &str) -> ValueResult<String> {
    let is_host =
        !text.is_empty() && !text.contains(['/', ':', '@']) && !text.chars().any(char::is_whitespace);
    if is_host && (text == "*" || !text.contains('*')) {
        return Ok(text.to_owned());
    }
    invalid(format!(
        "`{text}` is not a host; write a host name only, as in `mcp.example.com`, or `*` for any"
    ))
}

/// Parses the origin of web pages that may send requests, or `*`.
fn origin(text: &str) -> ValueResult<String> {
    let is_origin = text.split_once("://").is_some_and(|(scheme, authority)| {
        !scheme.is_empty()
            && !authority.is_empty()
            && !authority.contains(['/', '*', '?', '#', '@'])
            && !authority.chars().any(char::is_whitespace)
    });
    if is_origin || text == "*" {
        return Ok(text.to_owned());
    }
    invalid(format!(
        "`{text}` is not an origin; write scheme and host, as in `https://app.example.com`, or `*` for any"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_origins_have_no_paths() {
        assert!(host("mcp.example.com").is_ok() && host("*").is_ok());
        assert!(host("https://x").is_err() && host("x:80").is_err() && host("*.x").is_err());
        assert!(origin("https://app.example.com:8443").is_ok() && origin("*").is_ok());
        assert!(origin("app.example.com").is_err() && origin("https://x/").is_err());
    }
}
