//! A URL as written in a configuration, with variables, and its display form.
//!
//! A variable is never split: `${NAME}` and `${NAME:-default}` are atomic, whatever characters the default
//! contains. The display form shows variables by name; it hides the user, literal query values, the fragment,
//! and defaults that may contain one of these.

use std::fmt::Write;

/// The parts of a URL text. Nothing is validated; the text may not be a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlText<'t> {
    /// `None` if the text has no literal `://`.
    scheme: Option<&'t str>,
    /// User and password, before the `@`.
    user: Option<&'t str>,
    host: &'t str,
    /// The port including its colon; empty if there is none.
    port: &'t str,
    path: &'t str,
    query: Option<&'t str>,
    has_fragment: bool,
}

/// Placeholder for hidden parts.
const PLACEHOLDER: &str = "…";

/// Query parameters whose names indicate a secret.
const SECRET_PARAMETERS: [&str; 9] =
    ["access_token", "api-key", "api_key", "apikey", "password", "secret", "sig", "signature", "token"];

// === impl UrlText ===

impl<'t> UrlText<'t> {
    /// Splits a text into the parts of a URL.
    pub fn new(text: &'t str) -> Self {
        let (scheme, rest) = match find_literal(text, |rest| rest.starts_with("://")) {
            Some(at) => (Some(&text[..at]), &text[at + 3..]),
            None => (None, text),
        };
        let (rest, fragment) = split_literal(rest, '#');
        let (rest, query) = split_literal(rest, '?');
        let at = find_literal(rest, |rest| rest.starts_with('/')).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        let (user, host) = match rfind_literal(authority, '@') {
            Some(at) => (Some(&authority[..at]), &authority[at + 1..]),
            None => (None, authority),
        };
        let bracket = rfind_literal(host, ']').unwrap_or(0);
        let colon = rfind_literal(host, ':').filter(|colon| *colon >= bracket).unwrap_or(host.len());
        let (host, port) = host.split_at(colon);
        Self { scheme, user, host, port, path, query, has_fragment: fragment.is_some() }
    }

    /// Whether the text has the form `SCHEME://…`.
    pub const fn has_scheme(&self) -> bool {
        self.scheme.is_some()
    }

    /// Returns the host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &'t str {
        self.host.trim_matches(['[', ']'])
    }

    /// Whether scheme, host and port contain no variables.
    pub fn has_literal_port(&self) -> bool {
        self.scheme.is_some_and(|scheme| !scheme.contains("${"))
            && !self.host.contains("${")
            && !self.port.contains("${")
    }

    /// Returns the display form of the URL. A literal query, and a user, are omitted, or shown as `…` if
    /// `shows_omissions` is set.
    pub fn display_form(&self, shows_omissions: bool) -> String {
        let mut shown = String::new();
        if let Some(scheme) = self.scheme {
            push_redacted(&mut shown, scheme);
            shown.push_str("://");
        }
        if shows_omissions && self.user.is_some() {
            let _ = write!(shown, "{PLACEHOLDER}@");
        }
        for part in [self.host, self.port, self.path] {
            push_redacted(&mut shown, part);
        }
        match self.query {
            Some(query) if query.contains("${") => {
                shown.push('?');
                push_query(&mut shown, query);
            }
            Some(_) if shows_omissions => _ = write!(shown, "?{PLACEHOLDER}"),
            None if shows_omissions && self.has_fragment => _ = write!(shown, "?{PLACEHOLDER}"),
            Some(_) | None => {}
        }
        shown
    }

    /// Describes a literal secret in the URL: a password, or the value of a query parameter. `None` if there
    /// is none.
    pub fn literal_secret(&self) -> Option<String> {
        let user = self.user.filter(|user| !user.contains("${") && user.contains(':'));
        if user.is_some() {
            return Some("a password".to_owned());
        }
        let mut parameters = self.query.into_iter().flat_map(parameters);
        let is_secret = |(name, value): &(&str, Option<&str>)| {
            let is_named = SECRET_PARAMETERS.iter().any(|secret| secret.eq_ignore_ascii_case(name));
            is_named && value.is_some_and(|value| !value.is_empty() && !value.contains("${"))
        };
        parameters.find(is_secret).map(|(name, _)| format!("the value of `{name}`"))
    }
}

/// Returns the query parameters, each with its value, if it has one.
fn parameters(query: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut rest = Some(query);
    std::iter::from_fn(move || {
        let (parameter, more) = split_literal(rest?, '&');
        rest = more;
        Some(split_literal(parameter, '='))
    })
}

/// Appends a query to `shown`. Values that consist of variables only are shown, with the names of their
/// parameters.
fn push_query(shown: &mut String, query: &str) {
    for (index, (name, value)) in parameters(query).enumerate() {
        if index > 0 {
            shown.push('&');
        }
        match value {
            Some(value) if literal_chars(value).next().is_none() && !value.is_empty() => {
                push_redacted(shown, name);
                shown.push('=');
                push_redacted(shown, value);
            }
            Some(_) => {
                push_redacted(shown, name);
                let _ = write!(shown, "={PLACEHOLDER}");
            }
            None => shown.push_str(PLACEHOLDER),
        }
    }
}

/// Appends a text with its variables to `shown`. Defaults that may contain a user or a query are replaced by
/// a placeholder.
fn push_redacted(shown: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let end = rest[at..].find('}').map_or(rest.len(), |end| at + end + 1);
        let (before, variable) = (&rest[..at], &rest[at..end]);
        shown.push_str(before);
        match variable.split_once(":-") {
            Some((name, default)) if default.contains(['@', '?', '#']) => {
                let _ = write!(shown, "{name}:-{PLACEHOLDER}}}");
            }
            _ => shown.push_str(variable),
        }
        rest = &rest[end..];
    }
    shown.push_str(rest);
}

/// Returns the characters outside of variables, with their byte positions.
fn literal_chars(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut inside_until = 0;
    text.char_indices().filter(move |(at, _)| {
        if *at >= inside_until && text[*at..].starts_with("${") {
            inside_until = text[*at..].find('}').map_or(text.len(), |end| at + end + 1);
        }
        *at >= inside_until
    })
}

/// Returns the byte position of the first match outside of variables.
fn find_literal(text: &str, mut is_match: impl FnMut(&str) -> bool) -> Option<usize> {
    literal_chars(text).map(|(at, _)| at).find(|at| is_match(&text[*at..]))
}

fn rfind_literal(text: &str, char: char) -> Option<usize> {
    literal_chars(text).filter(|(_, found)| *found == char).map(|(at, _)| at).last()
}

/// Splits at the first occurrence of a character outside of variables.
fn split_literal(text: &str, separator: char) -> (&str, Option<&str>) {
    match find_literal(text, |rest| rest.starts_with(separator)) {
        Some(found) => (&text[..found], Some(&text[found + 1..])),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_shown_by_name_and_literal_secrets_are_hidden() {
        for (text, shown, marked) in [
            ("http://a:1/mcp", "http://a:1/mcp", "http://a:1/mcp"),
            ("http://me:pw@a/mcp?x=secret#f", "http://a/mcp", "http://…@a/mcp?…"),
            ("https://a/${KEY}/mcp", "https://a/${KEY}/mcp", "https://a/${KEY}/mcp"),
            ("https://${HOST}:${PORT}/mcp", "https://${HOST}:${PORT}/mcp", "https://${HOST}:${PORT}/mcp"),
            ("${URL}", "${URL}", "${URL}"),
            ("${BASE}/mcp?x=secret", "${BASE}/mcp", "${BASE}/mcp?…"),
            ("${URL:-http://a/b?c=@d}", "${URL:-…}", "${URL:-…}"),
            ("${URL:-http://a/b}", "${URL:-http://a/b}", "${URL:-http://a/b}"),
            ("http://${U}:${P}@a/", "http://a/", "http://…@a/"),
            (
                "http://a/?k=${KEY}&x=secret&s${Y}=1&z",
                "http://a/?k=${KEY}&x=…&s${Y}=…&…",
                "http://a/?k=${KEY}&x=…&s${Y}=…&…",
            ),
            ("http://a/?k=x${KEY}", "http://a/?k=…", "http://a/?k=…"),
            ("http://[::1]:9/x", "http://[::1]:9/x", "http://[::1]:9/x"),
            ("plain?", "plain", "plain?…"),
            ("${open", "${open", "${open"),
        ] {
            let url = UrlText::new(text);
            assert_eq!((&*url.display_form(false), &*url.display_form(true)), (shown, marked), "{text}");
        }
    }

    #[test]
    fn the_port_is_literal_unless_it_depends_on_a_variable() {
        for (text, host, is_literal) in [
            ("http://[::1]:9/x", "::1", true),
            ("http://a/x:7", "a", true),
            ("http://a:${PORT}/", "a", false),
            ("http://${HOST}:1/", "${HOST}", false),
            ("${SCHEME}://a", "a", false),
            ("${URL}/x", "${URL}", false),
        ] {
            let url = UrlText::new(text);
            assert_eq!((url.host(), url.has_literal_port()), (host, is_literal), "{text}");
        }
    }

    #[test]
    fn a_password_and_a_key_in_the_text_are_literal_secrets() {
        for (text, secret) in [
            ("http://me:pw@a/", Some("a password")),
            ("http://me:${PW}@a/", None),
            ("http://me@a/", None),
            ("http://a/?x=1&API_KEY=2", Some("the value of `API_KEY`")),
            ("http://a/?api_key=${KEY}", None),
            ("http://a/?token=", None),
            ("http://a/?x=1", None),
        ] {
            assert_eq!(UrlText::new(text).literal_secret().as_deref(), secret, "{text}");
        }
    }

    #[test]
    fn reading_is_linear_in_the_text() {
        // Quadratic time would take minutes here.
        let text = format!("http://{}", "${a}:@?&=".repeat(20_000));
        let url = UrlText::new(&text);
        assert!(url.display_form(true).len() <= 2 * text.len());
        assert!(url.literal_secret().is_none());
    }
}
