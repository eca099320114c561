//! Authorization on the admin address.
//!
//! On loopback, reading requires no token. Changes require the admin token, so that neither another user of
//! the machine nor a web page can cancel a task. If other machines can reach the address, reading requires
//! the token as well, and TLS ([`Config`](super::Config)).

use super::{
    response::{AdminResponse, error_response},
    sign_in::BrowserSignIn,
};
use crate::policy::{TokenError, TokenSet, bearer_token};
use http::{HeaderMap, StatusCode, header::WWW_AUTHENTICATE};
use std::sync::Arc;

/// The authorization that an endpoint requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequiredAccess {
    /// No authorization: health checks have no token, and get no confidential data.
    Probe,
    /// The admin token, unless the address is on loopback.
    Read,
    /// The admin token.
    Change,
}

/// Checks whether requests have the authorization that their endpoint requires.
pub(super) struct TokenGate {
    /// The valid admin tokens.
    pub(super) tokens: TokenSet,
    /// Whether other machines can reach the address.
    pub(super) is_exposed: bool,
    /// Browser sessions of the admin page, whose tokens are valid as well.
    pub(super) sign_in: Arc<BrowserSignIn>,
    /// Text that tells where to find the token, for error messages.
    pub(super) token_hint: String,
}

/// The hint where to find a configured token.
pub(super) const CONFIGURED_HINT: &str = "see `admin.token` of the configuration";

// === impl TokenGate ===

impl TokenGate {
    /// Checks the authorization of a request.
    ///
    /// # Errors
    /// A response that says what is missing and where to find the token.
    pub(super) fn admit(
        &self,
        required: RequiredAccess,
        headers: &mut HeaderMap,
    ) -> Result<(), Box<AdminResponse>> {
        let needs_token = match required {
            RequiredAccess::Probe => false,
            RequiredAccess::Read => self.is_exposed,
            RequiredAccess::Change => true,
        };
        match needs_token.then(|| self.tokens.authenticate(headers)) {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(TokenError::InvalidToken))
                if bearer_token(headers).is_some_and(|token| self.sign_in.touch_session(token)) =>
            {
                Ok(())
            }
            Some(Err(error)) => Err(Box::new(self.refusal(error))),
        }
    }

    fn refusal(&self, error: TokenError) -> AdminResponse {
        let message = match error {
            TokenError::NoToken => {
                "this request requires the admin token: send `Authorization: Bearer TOKEN`"
            }
            TokenError::InvalidToken => "this is not the admin token",
            TokenError::SeveralHeaders => "the request has several `Authorization` headers; send one",
        };
        let mut response =
            error_response(StatusCode::UNAUTHORIZED, &format!("{message} ({})", self.token_hint));
        response.headers_mut().insert(WWW_AUTHENTICATE, error.challenge());
        response
    }
}

/// Formats bytes as lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a set with this admin token, which holds the digest of the token only.
pub(super) fn admin_token_set(token: &str) -> TokenSet {
    TokenSet::new([(Arc::from("operator"), token)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::SystemClock;
    use http::{HeaderValue, header::AUTHORIZATION};

    fn admit_with(
        is_exposed: bool,
        required: RequiredAccess,
        tokens: &[&'static str],
    ) -> Result<(), StatusCode> {
        let sign_in = Arc::new(BrowserSignIn::new(Arc::new(SystemClock::new())));
        let where_found = CONFIGURED_HINT.to_owned();
        let gate = TokenGate {
            tokens: admin_token_set("the-right-token"),
            is_exposed,
            sign_in,
            token_hint: where_found,
        };
        let mut headers = HeaderMap::new();
        for shown in tokens {
            headers.append(AUTHORIZATION, HeaderValue::from_static(shown));
        }
        gate.admit(required, &mut headers).map_err(|answer| answer.status())
    }

    #[test]
    fn changes_require_the_token_and_so_does_reading_on_an_exposed_address() {
        const RIGHT: &[&str] = &["Bearer the-right-token"];
        const WRONG: &[&str] = &["Bearer the-wrong-token"];
        for (may, is_exposed, is_open) in [
            (RequiredAccess::Probe, false, true),
            (RequiredAccess::Probe, true, true),
            (RequiredAccess::Read, false, true),
            (RequiredAccess::Read, true, false),
            (RequiredAccess::Change, false, false),
            (RequiredAccess::Change, true, false),
        ] {
            let without = if is_open { Ok(()) } else { Err(StatusCode::UNAUTHORIZED) };
            assert_eq!(admit_with(is_exposed, may, &[]), without, "{may:?} {is_exposed}");
            assert_eq!(admit_with(is_exposed, may, WRONG), without, "{may:?} {is_exposed}");
            assert_eq!(admit_with(is_exposed, may, &[RIGHT[0], RIGHT[0]]), without, "{may:?} {is_exposed}");
            assert_eq!(admit_with(is_exposed, may, RIGHT), Ok(()), "{may:?} {is_exposed}");
        }
    }
}
