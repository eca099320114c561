//! Who may do what at the operator's address.
//!
//! On loopback everybody on the machine may read. What changes something needs the operator's token, so that
//! neither another person of the machine nor a page in a browser ends somebody's task. Where others can reach the
//! address, reading needs the token, too, and it goes over TLS ([`Config`](super::Config)).

use super::{
    response::{AdminResponse, problem},
    sign_in::BrowserSignIn,
};
use crate::policy::{TokenError, TokenSet, bearer_token};
use http::{HeaderMap, StatusCode, header::WWW_AUTHENTICATE};
use std::sync::Arc;

/// Who may ask for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequiredAccess {
    /// Whoever reaches the address: probes have no token, and are told nothing that is anybody's.
    Probe,
    /// Operators: on loopback whoever is there, elsewhere whoever has the token.
    Read,
    /// Operators with the token.
    Change,
}

/// What lets operators in.
pub(super) struct TokenGate {
    pub(super) tokens: TokenSet,
    /// Whether others than this machine can reach the address.
    pub(super) is_exposed: bool,
    /// Sessions of the page, which stand for the token.
    pub(super) sign_in: Arc<BrowserSignIn>,
    /// Where the token is found, for those who have none.
    pub(super) token_hint: String,
}

/// Where a configured token is.
pub(super) const CONFIGURED_HINT: &str = "see `admin.token` of the configuration";

// === impl Gate ===

impl TokenGate {
    /// Lets a request in.
    ///
    /// # Errors
    /// An answer that says what is missing, and where to find it.
    pub(super) fn admit(
        &self,
        may: RequiredAccess,
        headers: &mut HeaderMap,
    ) -> Result<(), Box<AdminResponse>> {
        let needs_token = match may {
            RequiredAccess::Probe => false,
            RequiredAccess::Read => self.is_exposed,
            RequiredAccess::Change => true,
        };
        match needs_token.then(|| self.tokens.take(headers)) {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(TokenError::WrongToken))
                if bearer_token(headers).is_some_and(|token| self.sign_in.use_session(token)) =>
            {
                Ok(())
            }
            Some(Err(refused)) => Err(Box::new(self.refusal(refused))),
        }
    }

    fn refusal(&self, refused: TokenError) -> AdminResponse {
        let why = match refused {
            TokenError::NoToken => {
                "this request requires the admin token: send `Authorization: Bearer TOKEN`"
            }
            TokenError::WrongToken => "this is not the admin token",
            TokenError::Several => "the request has several `Authorization` headers; send one",
        };
        let mut answer = problem(StatusCode::UNAUTHORIZED, &format!("{why} ({})", self.token_hint));
        answer.headers_mut().insert(WWW_AUTHENTICATE, refused.challenge());
        answer
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The operator's token as it is compared: by its digest.
pub(super) fn operator_tokens(token: &str) -> TokenSet {
    TokenSet::new([(Arc::from("operator"), token)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::SystemClock;
    use http::{HeaderValue, header::AUTHORIZATION};

    fn admitted(is_exposed: bool, may: RequiredAccess, shown: &[&'static str]) -> Result<(), StatusCode> {
        let sign_in = Arc::new(BrowserSignIn::new(Arc::new(SystemClock::new())));
        let where_found = CONFIGURED_HINT.to_owned();
        let gate = TokenGate {
            tokens: operator_tokens("the-right-token"),
            is_exposed,
            sign_in,
            token_hint: where_found,
        };
        let mut headers = HeaderMap::new();
        for shown in shown {
            headers.append(AUTHORIZATION, HeaderValue::from_static(shown));
        }
        gate.admit(may, &mut headers).map_err(|answer| answer.status())
    }

    #[test]
    fn a_change_needs_the_token_and_so_does_reading_where_others_can_reach_it() {
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
            assert_eq!(admitted(is_exposed, may, &[]), without, "{may:?} {is_exposed}");
            assert_eq!(admitted(is_exposed, may, WRONG), without, "{may:?} {is_exposed}");
            assert_eq!(admitted(is_exposed, may, &[RIGHT[0], RIGHT[0]]), without, "{may:?} {is_exposed}");
            assert_eq!(admitted(is_exposed, may, RIGHT), Ok(()), "{may:?} {is_exposed}");
        }
    }
}
