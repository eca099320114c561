//! The bearer tokens that authenticate clients (RFC 6750).
//!
//! A token identifies its client: the principal is the token's name, so that a new token under the same name
//! is the same caller. Only the digest of a token is stored, and a presented token is compared with all
//! stored tokens in constant time: the duration reveals neither which token it resembled nor how much of it
//! was correct.

use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, Entry},
};
use ring::digest::{SHA256, digest};
use std::{fmt, sync::Arc};
use subtle::{ConditionallySelectable, ConstantTimeEq};

/// The access tokens that a route accepts (`access.tokens`). If empty, requests need no token.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TokenSet(Vec<Arc<AccessToken>>);

/// An accepted access token: the name of its owner, and the SHA-256 of its text.
#[derive(PartialEq, Eq)]
pub struct AccessToken {
    name: Arc<str>,
    digest: [u8; 32],
}

/// The reason why a request is not authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The request has no bearer token.
    #[error("a token is required: send `Authorization: Bearer TOKEN` (access.tokens)")]
    NoToken,
    /// The request has a bearer token that is not accepted.
    #[error("the token is not valid (access.tokens)")]
    InvalidToken,
    /// The request has several `Authorization` headers.
    #[error("the request has several `Authorization` headers; send one")]
    SeveralHeaders,
}

// === impl TokenSet ===

impl TokenSet {
    /// Creates the set from tokens and the names of their owners. A name may have several tokens.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (Arc<str>, &'a str)>) -> Self {
        let token =
            |(name, token): (_, &str)| Arc::new(AccessToken { name, digest: digest_of(token.as_bytes()) });
        Self(tokens.into_iter().map(token).collect())
    }

    /// Whether there are no tokens, so that requests need none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names of the owners of all tokens; a name with several tokens is repeated.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|token| &token.name)
    }

    /// Authenticates a request by its bearer token. The token is removed from the headers, because it is
    /// meant for the proxy and no server may see it.
    ///
    /// # Errors
    /// [`TokenError`] if the request has no token, an unknown token, or several `Authorization` headers.
    pub fn authenticate(&self, headers: &mut HeaderMap) -> Result<Arc<AccessToken>, TokenError> {
        let Entry::Occupied(presented) = headers.entry(AUTHORIZATION) else {
            return Err(TokenError::NoToken);
        };
        if presented.iter().count() > 1 {
            return Err(TokenError::SeveralHeaders);
        }
        let token = self.find(parse_bearer(presented.get()).ok_or(TokenError::NoToken)?);
        let token = token.ok_or(TokenError::InvalidToken)?;
        presented.remove();
        Ok(token)
    }

    /// Whether a request that was authenticated with this token (`None` for no token) before a reload would
    /// be authenticated as the same caller now.
    pub fn still_accepts(&self, presented: Option<&AccessToken>) -> bool {
        presented.map_or(self.is_empty(), |presented| self.0.iter().any(|accepted| **accepted == *presented))
    }

    /// Finds a token by its text, in constant time for all stored tokens.
    fn find(&self, token: &[u8]) -> Option<Arc<AccessToken>> {
        let presented = digest_of(token);
        let mut found = u64::MAX;
        for (index, accepted) in (0..).zip(&self.0) {
            found.conditional_assign(&index, accepted.digest.ct_eq(&presented));
        }
        self.0.get(usize::try_from(found).ok()?).map(Arc::clone)
    }
}

impl AccessToken {
    /// Returns the name of the token's owner.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for AccessToken {
    /// Prints only the name, not the digest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl fmt::Debug for TokenSet {
    /// Prints only the names, not the digests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.0).finish()
    }
}

// === impl TokenError ===

impl TokenError {
    /// Returns the value of the `WWW-Authenticate` response header (RFC 6750, 3), which names an error only
    /// if a token was presented.
    pub fn challenge(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::NoToken => r#"Bearer realm="deferral""#,
            Self::InvalidToken | Self::SeveralHeaders => r#"Bearer realm="deferral", error="invalid_token""#,
        })
    }
}

/// Returns the bearer token of a request; `None` unless the request has exactly one `Authorization` header,
/// and that is a bearer token.
pub fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?;
    parse_bearer(value).filter(|_| values.next().is_none())
}

/// Returns the token in an `Authorization` value; `None` for another scheme than `Bearer`. The scheme is
/// case-insensitive (RFC 9110, 11.1), and blanks follow it.
fn parse_bearer(authorization: &HeaderValue) -> Option<&[u8]> {
    let (scheme, rest) = authorization.as_bytes().split_at_checked(BEARER_SCHEME.len())?;
    let token = rest.trim_ascii();
    let is_bearer =
        scheme.eq_ignore_ascii_case(BEARER_SCHEME) && rest.first() == Some(&b' ') && !token.is_empty();
    is_bearer.then_some(token)
}

const BEARER_SCHEME: &[u8] = b"Bearer";

fn digest_of(token: &[u8]) -> [u8; 32] {
    digest(&SHA256, token).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> TokenSet {
        TokenSet::new([("alice", "a-token"), ("bob", "b-token"), ("alice", "new-token")].map(named))
    }

    fn named((name, token): (&str, &'static str)) -> (Arc<str>, &'static str) {
        (name.into(), token)
    }

    fn authenticate(shown: &[&'static str]) -> (Result<Arc<str>, TokenError>, bool) {
        let mut headers = HeaderMap::new();
        for value in shown {
            headers.append(AUTHORIZATION, HeaderValue::from_static(value));
        }
        let taken = tokens().authenticate(&mut headers).map(|token| token.name().into());
        (taken, headers.contains_key(AUTHORIZATION))
    }

    #[test]
    fn each_token_yields_its_name_and_is_removed() {
        for (shown, name) in [
            ("Bearer a-token", "alice"),
            ("bearer b-token", "bob"),
            ("BEARER   new-token", "alice"),
            ("Bearer a-token ", "alice"),
        ] {
            assert_eq!(authenticate(&[shown]), (Ok(name.into()), false), "{shown}");
        }
    }

    #[test]
    fn any_other_authorization_is_refused() {
        for (shown, why) in [
            (&[][..], TokenError::NoToken),
            (&["Basic YTpi"], TokenError::NoToken),
            (&["Bearer"], TokenError::NoToken),
            (&["Bearer "], TokenError::NoToken),
            (&["Bearera-token"], TokenError::NoToken),
            (&["a-token"], TokenError::NoToken),
            (&["Bearer a-toke"], TokenError::InvalidToken),
            (&["Bearer a-tokens"], TokenError::InvalidToken),
            (&["Bearer A-token"], TokenError::InvalidToken),
            (&["Bearer a-token, Bearer b-token"], TokenError::InvalidToken),
            (&["Bearer a-token", "Bearer a-token"], TokenError::SeveralHeaders),
        ] {
            let (taken, _) = authenticate(shown);
            assert_eq!(taken, Err(why), "{shown:?}");
            assert_eq!(why.challenge().to_str().unwrap().contains("error="), why != TokenError::NoToken);
        }
    }

    #[test]
    fn a_removed_or_renamed_token_admits_no_request() {
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Bearer a-token"))]);
        let shown = tokens().authenticate(&mut headers).expect("it is known");
        let admitted = |kept: &[(&'static str, &'static str)], shown| {
            TokenSet::new(kept.iter().copied().map(named)).still_accepts(shown)
        };
        assert!(admitted(&[("bob", "b-token"), ("alice", "a-token")], Some(&shown)));
        for kept in [&[("alice", "new-token")][..], &[("bob", "a-token")], &[]] {
            assert!(!admitted(kept, Some(&shown)), "{kept:?}");
        }
        assert!(admitted(&[], None));
        assert!(!admitted(&[("alice", "a-token")], None), "tokens are asked for now");
    }

    #[test]
    fn tokens_are_not_in_debug_output() {
        assert_eq!(format!("{:?}", tokens()), r#"{"alice", "bob", "alice"}"#);
    }
}
