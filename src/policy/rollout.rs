//! Gradual rollout: the share of callers to which a route's mode already applies.
//!
//! A caller's position is determined only by its identity and the route: it is the same after a restart, in
//! every replica, and for every share. A caller that is included at 10 % is included at 25 %.

use super::{NamePattern, PrincipalSource};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{AUTHORIZATION, AsHeaderName},
};
use ring::digest::{Context, SHA256};
use std::{fmt, sync::Arc};

/// The callers to which the mode applies (`rollout`). For all other callers the mode is `observe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The share of callers that are included.
    pub share: RolloutShare,
    /// The property by which callers are distributed.
    pub basis: RolloutBasis,
    /// Callers that match one of these patterns are included at any share, unless they match one of `never`.
    pub always: Vec<NamePattern>,
    /// Callers that match one of these patterns are excluded at any share.
    pub never: Vec<NamePattern>,
}

/// The share of callers in millionths: 0 for no caller, 1,000,000 for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RolloutShare(u32);

/// The property of a request that determines whether its caller is in the share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RolloutBasis {
    /// The caller's principal on the route. A caller without credentials is included only in a share of 100
    /// %.
    #[default]
    Principal,
    /// The `Mcp-Session-Id`, which revisions before 2026-07-28 have.
    Session,
    /// The value of this header.
    Header(HeaderName),
}

/// The parts of a request's head by which a caller is included in a rollout.
#[derive(Clone, Copy, Debug)]
pub struct CallerHead<'a> {
    /// All headers of the request.
    pub headers: &'a HeaderMap,
    /// The name of the caller's access token; `None` without one.
    pub token: Option<&'a str>,
    /// The principal in the form of the log: 16 hexadecimal digits or `anonymous`.
    pub principal: &'a str,
}

/// Whether a caller is a member of each rollout of a route: that of `defer` and of each tool's rule, in that
/// order. `None` if the route has no rollout.
pub type RolloutMembership = Option<Arc<[bool]>>;

/// The properties of a caller that one rollout compares.
struct RolloutKey<'a> {
    /// The input of the hash that assigns the caller's position in `0..MILLION`; a caller without any part
    /// has no position.
    parts: Vec<&'a [u8]>,
    /// The names that `always` and `never` match.
    names: Vec<&'a str>,
}

const MILLION: u32 = 1_000_000;

/// Whether a caller with this membership is a member of the rollout of the rule with this index; `None` for
/// the rollout of `defer`.
pub(super) fn is_member(membership: &RolloutMembership, rule: Option<usize>) -> bool {
    let index = rule.map_or(0, |rule| rule + 1);
    membership.as_ref().is_none_or(|all| all.get(index).copied().unwrap_or(true))
}

/// The name of the session id header.
const SESSION_HEADER: &str = "mcp-session-id";

// === impl RolloutShare ===

impl RolloutShare {
    /// All callers.
    pub const ALL: Self = Self(MILLION);

    /// Creates a share of `millionths`; `None` for more than 1,000,000.
    pub fn from_millionths(millionths: u32) -> Option<Self> {
        (millionths <= MILLION).then_some(Self(millionths))
    }

    /// Whether the share is neither zero nor all.
    pub const fn is_partial(self) -> bool {
        0 < self.0 && self.0 < MILLION
    }
}

impl fmt::Display for RolloutShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / 10_000, self.0 % 10_000);
        match format!("{fraction:04}").trim_end_matches('0') {
            "" => write!(f, "{whole}%"),
            digits => write!(f, "{whole}.{digits}%"),
        }
    }
}

// === impl RolloutBasis ===

impl fmt::Display for RolloutBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Principal => f.write_str("principal"),
            Self::Session => f.write_str("session"),
            Self::Header(name) => f.write_str(name.as_str()),
        }
    }
}

// === impl Rollout ===

impl Rollout {
    /// Whether the caller of a request with this head is a member of the rollout. `path` is the path of the
    /// route, and `source` is how the route identifies callers.
    pub fn includes(&self, path: &str, source: &PrincipalSource, head: CallerHead<'_>) -> bool {
        let key = self.key(source, head);
        let matches_any = |patterns: &[NamePattern]| {
            patterns.iter().any(|pattern| key.names.iter().any(|name| pattern.matches(name)))
        };
        if matches_any(&self.never) {
            return false;
        }
        // A caller without a key has no position, and is included only in a share of 100 %.
        self.share == RolloutShare::ALL
            || matches_any(&self.always)
            || !key.parts.is_empty() && bucket_of(path, &key.parts) < self.share.0
    }

    /// Reads the caller's key for this rollout from the head of its request.
    fn key<'a>(&self, source: &'a PrincipalSource, head: CallerHead<'a>) -> RolloutKey<'a> {
        match (&self.basis, source) {
            (RolloutBasis::Session, _) => RolloutKey::from_header(head.headers, SESSION_HEADER),
            (RolloutBasis::Header(name), _) => RolloutKey::from_header(head.headers, name),
            (RolloutBasis::Principal, PrincipalSource::Header(name)) => {
                RolloutKey::from_header(head.headers, name)
                    .with_token(head.token)
                    .with_principal(head.principal)
            }
            (RolloutBasis::Principal, PrincipalSource::Authorization) => {
                let RolloutKey { parts, .. } = RolloutKey::from_header(head.headers, AUTHORIZATION);
                // The value of `Authorization` is a secret, so patterns cannot match it.
                RolloutKey { parts, names: Vec::new() }.with_token(head.token).with_principal(head.principal)
            }
        }
    }
}

impl fmt::Display for Rollout {
    /// Formats the rollout as in `25% by principal`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.share, self.basis)
    }
}

// === impl RolloutKey ===

impl<'a> RolloutKey<'a> {
    fn from_header(headers: &'a HeaderMap, name: impl AsHeaderName) -> Self {
        let values = headers.get_all(name);
        Self {
            parts: values.iter().map(HeaderValue::as_bytes).collect(),
            names: values.iter().filter_map(|value| value.to_str().ok()).collect(),
        }
    }

    /// Adds the name of the token to the key. Callers that share a token are still distinguished by the rest
    /// of the key.
    fn with_token(mut self, token: Option<&'a str>) -> Self {
        if let Some(token) = token {
            self.parts.insert(0, token.as_bytes());
            self.names.push(token);
        }
        self
    }

    /// Adds the principal to the names that patterns match.
    fn with_principal(mut self, principal: &'a str) -> Self {
        self.names.push(principal);
        self
    }
}

/// Computes the position of a caller on the route of this path, in `0..MILLION`: the first eight bytes of a
/// SHA-256 over the path and each part of the key, with a zero byte before each part. No header contains a
/// zero byte.
fn bucket_of(path: &str, key: &[&[u8]]) -> u32 {
    let mut digest = Context::new(&SHA256);
    digest.update(path.as_bytes());
    for part in key {
        digest.update(&[0]);
        digest.update(part);
    }
    let digest = digest.finish();
    let first = digest.as_ref().first_chunk().expect("SHA-256 has 32 bytes");
    let scaled = u128::from(u64::from_be_bytes(*first)) * u128::from(MILLION);
    u32::try_from(scaled >> 64).expect("it is less than a million")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: PrincipalSource = PrincipalSource::Header(HeaderName::from_static("x-user"));

    fn rollout(millionths: u32) -> Rollout {
        let share = RolloutShare::from_millionths(millionths).expect("a share");
        Rollout { share, basis: RolloutBasis::Principal, always: Vec::new(), never: Vec::new() }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let value = |text| HeaderValue::from_str(text).expect("a value");
        pairs.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
    }

    fn admits(rollout: &Rollout, pairs: &[(&'static str, &str)], token: Option<&str>) -> bool {
        let headers = headers(pairs);
        rollout.includes(
            "/mcp",
            &SOURCE,
            CallerHead { headers: &headers, token, principal: "0123456789abcdef" },
        )
    }

    /// The members among 10,000 users.
    fn users(path: &str, millionths: u32) -> Vec<bool> {
        let rollout = rollout(millionths);
        let is_in = |number| {
            let headers = headers(&[("x-user", &format!("user-{number}"))]);
            rollout.includes(path, &SOURCE, CallerHead { headers: &headers, token: None, principal: "x" })
        };
        (0..10_000).map(is_in).collect()
    }

    #[test]
    fn of_ten_thousand_principals_a_share_is_in_and_stays_in_as_it_grows() {
        let mut before = vec![false; 10_000];
        for percent in [0, 1, 10, 25, 50, 100] {
            let now = users("/mcp", percent * 10_000);
            let count = now.iter().filter(|is_in| **is_in).count();
            let expected = percent as usize * 100;
            assert!(count.abs_diff(expected) <= 100, "{count} of 10000 at {percent} %");
            assert!(
                before.iter().zip(&now).all(|(before, now)| !before || *now),
                "{percent} % lost somebody"
            );
            if matches!(percent, 0 | 100) {
                assert_eq!(count, expected, "nobody is nobody, and all are all");
            }
            before = now;
        }
    }

    #[test]
    fn the_same_callers_are_not_the_first_on_every_route() {
        let (one, other) = (users("/a", 250_000), users("/b", 250_000));
        let both = one.iter().zip(&other).filter(|(one, other)| **one && **other).count();
        assert!(both.abs_diff(625) < 100, "{both} of 10000 are in on both: a quarter of a quarter would be");
    }

    #[test]
    fn a_bucket_is_reproducible_and_never_changes() {
        // printf '/mcp\0alice' | sha256sum: the first 16 digits, divided by 2^64.
        let place =
            |key: &[&str]| bucket_of("/mcp", &key.iter().map(|part| part.as_bytes()).collect::<Vec<_>>());
        assert_eq!(
            [
                place(&["alice"]),
                place(&["bob"]),
                place(&["carol"]),
                place(&["Bearer a"]),
                place(&["ci", "alice"])
            ],
            [519_853, 638_453, 560_069, 379_591, 452_717]
        );
    }

    #[test]
    fn a_caller_without_a_key_is_out_until_the_share_is_all() {
        for by in [
            RolloutBasis::Principal,
            RolloutBasis::Session,
            RolloutBasis::Header(HeaderName::from_static("x-tenant")),
        ] {
            let of = |millionths| Rollout { basis: by.clone(), ..rollout(millionths) };
            assert!(!admits(&of(999_999), &[], None), "{by}");
            assert!(admits(&of(1_000_000), &[], None), "{by}");
        }
    }

    #[test]
    fn named_callers_are_in_or_out_at_any_share() {
        let patterns = |texts: &[&str]| texts.iter().map(|text| NamePattern::new(*text)).collect();
        let named = |millionths, always: &[&str], never: &[&str]| Rollout {
            always: patterns(always),
            never: patterns(never),
            ..rollout(millionths)
        };
        let eve = [("x-user", "eve@example.com")];
        assert!(admits(&named(0, &["*@example.com"], &[]), &eve, None));
        assert!(!admits(&named(0, &["*@example.org"], &[]), &eve, None));
        assert!(!admits(&named(1_000_000, &[], &["eve@*"]), &eve, None));
        assert!(!admits(&named(0, &["*"], &["eve@*"]), &eve, None), "never outweighs always");
        assert!(admits(&named(0, &["ci"], &[]), &eve, Some("ci")), "by the token's name");
        assert!(admits(&named(0, &["0123456789abcdef"], &[]), &eve, None), "as the log shows it");
    }

    #[test]
    fn a_caller_is_not_named_by_its_authorization() {
        let rollout = Rollout { always: vec![NamePattern::new("Bearer*")], ..rollout(0) };
        let headers = headers(&[("authorization", "Bearer a")]);
        let head = CallerHead { headers: &headers, token: None, principal: "0123456789abcdef" };
        assert!(!rollout.includes("/mcp", &PrincipalSource::Authorization, head));
        let key = rollout.key(&PrincipalSource::Authorization, head);
        assert_eq!((key.parts, key.names), (vec![&b"Bearer a"[..]], vec!["0123456789abcdef"]));
    }

    #[test]
    fn sessions_and_headers_have_their_own_buckets() {
        let session = Rollout { basis: RolloutBasis::Session, ..rollout(500_000) };
        let tenant = RolloutBasis::Header(HeaderName::from_static("x-tenant"));
        let tenant = Rollout { basis: tenant, ..rollout(500_000) };
        let count = |rollout: &Rollout, name: &'static str| {
            let is_in =
                |number: &usize| admits(rollout, &[(name, &format!("{number}")), ("x-user", "u")], None);
            (0..1000).filter(is_in).count()
        };
        for (rollout, name) in [(&session, SESSION_HEADER), (&tenant, "x-tenant")] {
            let count = count(rollout, name);
            assert!(count.abs_diff(500) < 60, "{count} of 1000 by {name}");
        }
    }

    #[test]
    fn shares_are_shown_as_they_are_written() {
        let shown = |millionths| RolloutShare::from_millionths(millionths).map(|share| share.to_string());
        for (millionths, text) in
            [(0, "0%"), (1, "0.0001%"), (5_000, "0.5%"), (250_000, "25%"), (1_000_000, "100%")]
        {
            assert_eq!(shown(millionths).as_deref(), Some(text));
        }
        assert_eq!(shown(1_000_001), None);
    }
}
