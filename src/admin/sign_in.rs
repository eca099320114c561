//! Signing in to the admin page: a one-time code, printed on a terminal, is exchanged for a session.
//!
//! The code is in the fragment of the link, which browsers do not send; the page posts it once. A code is
//! valid once, and for [`CODE_LIFETIME`] after it was issued. The page gets a session token, which it sends as
//! `Authorization`, not as a cookie.

use super::gate::hex;
use crate::runtime::{Clock, Mutex, random};
use ring::digest::{SHA256, digest};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use subtle::ConstantTimeEq;

/// One-time codes and browser sessions.
pub struct BrowserSignIn {
    clock: Arc<dyn Clock>,
    state: Mutex<SignInState>,
}

#[derive(Default)]
struct SignInState {
    /// The current one-time code, until it is used.
    code: Option<IssuedSecret>,
    /// At most [`SESSIONS`], least recently used first.
    sessions: VecDeque<IssuedSecret>,
    /// Start of the current minute of attempts, and their number.
    attempts: Option<(Instant, u32)>,
}

/// The digest of a code or a session token.
struct IssuedSecret {
    digest: [u8; 32],
    /// When the code or token was issued or last used.
    used_at: Instant,
}

/// Reason to refuse a one-time code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CodeError {
    #[error(
        "the code was used already, or is older than {} minutes; sign in with the admin token",
        CODE_LIFETIME.as_secs() / 60
    )]
    InvalidCode,
    #[error("more than {ATTEMPTS} codes were tried within a minute; try again later")]
    TooManyAttempts {
        /// Time until codes are accepted again.
        wait: Duration,
    },
}

/// Lifetime of a one-time code.
pub(super) const CODE_LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Time without a request after which a browser session ends.
const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum number of browser sessions; a further one ends the least recently used one.
const SESSIONS: usize = 16;
/// Maximum number of codes that are tried in [`ATTEMPT_PERIOD`], by all browsers together.
const ATTEMPTS: u32 = 10;
/// The period in which attempts are counted.
const ATTEMPT_PERIOD: Duration = Duration::from_secs(60);

// === impl BrowserSignIn ===

impl BrowserSignIn {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Issues a one-time code, which replaces the previous one.
    pub(super) fn issue_code(&self) -> String {
        let code = hex(&random::<16>());
        self.state.lock().code = Some(IssuedSecret::new(&code, self.clock.now()));
        code
    }

    /// Exchanges a one-time code for the token of a new browser session.
    ///
    /// # Errors
    /// [`CodeError`] if the code is invalid, or too many were tried.
    pub(super) fn redeem(&self, code: &str) -> Result<String, CodeError> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.count_attempt(now)?;
        let is_valid = |issued: &mut IssuedSecret| {
            issued.matches(code.as_bytes()) && issued.is_younger_than(now, CODE_LIFETIME)
        };
        if state.code.take_if(is_valid).is_none() {
            return Err(CodeError::InvalidCode);
        }
        let token = hex(&random::<32>());
        state.sessions.push_back(IssuedSecret::new(&token, now));
        if state.sessions.len() > SESSIONS {
            state.sessions.pop_front();
        }
        Ok(token)
    }

    /// Returns whether this is the token of a browser session, and extends that session.
    pub(super) fn touch_session(&self, token: &[u8]) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.sessions.retain(|session| session.is_younger_than(now, SESSION_IDLE_TIMEOUT));
        let Some(index) = state.sessions.iter().position(|session| session.matches(token)) else {
            return false;
        };
        let session = state.sessions.remove(index).expect("the position is valid");
        state.sessions.push_back(IssuedSecret { used_at: now, ..session });
        true
    }

    /// Ends all sessions and revokes the code, because the admin token has changed.
    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        state.sessions.clear();
        state.code = None;
    }
}

// === impl SignInState ===

impl SignInState {
    fn count_attempt(&mut self, now: Instant) -> Result<(), CodeError> {
        let (window_start, count) =
            self.attempts.filter(|(since, _)| now < *since + ATTEMPT_PERIOD).unwrap_or((now, 0));
        if count >= ATTEMPTS {
            return Err(CodeError::TooManyAttempts { wait: window_start + ATTEMPT_PERIOD - now });
        }
        self.attempts = Some((window_start, count + 1));
        Ok(())
    }
}

// === impl IssuedSecret ===

impl IssuedSecret {
    fn new(text: &str, now: Instant) -> Self {
        Self { digest: sha256(text.as_bytes()), used_at: now }
    }

    fn matches(&self, candidate: &[u8]) -> bool {
        self.digest.ct_eq(&sha256(candidate)).into()
    }

    fn is_younger_than(&self, now: Instant, age: Duration) -> bool {
        now < self.used_at + age
    }
}

fn sha256(text: &[u8]) -> [u8; 32] {
    digest(&SHA256, text).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::SystemClock;
    use tokio::time::advance;

    fn sign_in() -> BrowserSignIn {
        BrowserSignIn::new(Arc::new(SystemClock::new()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_is_valid_once_and_for_minutes() {
        let sign_in = sign_in();
        let code = sign_in.issue_code();
        assert_eq!(sign_in.redeem("0123"), Err(CodeError::InvalidCode));
        let token = sign_in.redeem(&code).expect("it is right");
        assert!(
            sign_in.touch_session(token.as_bytes())
                && !sign_in.touch_session(code.as_bytes())
                && !sign_in.touch_session(b"")
        );
        assert_eq!(sign_in.redeem(&code), Err(CodeError::InvalidCode), "once");
        let (old, new) = (sign_in.issue_code(), sign_in.issue_code());
        assert_eq!(sign_in.redeem(&old), Err(CodeError::InvalidCode), "the newest only");
        advance(CODE_LIFETIME).await;
        assert_eq!(sign_in.redeem(&new), Err(CodeError::InvalidCode), "it is too old");
    }

    #[tokio::test(start_paused = true)]
    async fn codes_are_tried_ten_times_a_minute() {
        let sign_in = sign_in();
        let code = sign_in.issue_code();
        for _ in 0..ATTEMPTS {
            assert_eq!(sign_in.redeem("guess"), Err(CodeError::InvalidCode));
        }
        advance(Duration::from_secs(20)).await;
        assert_eq!(sign_in.redeem(&code), Err(CodeError::TooManyAttempts { wait: Duration::from_secs(40) }));
        advance(Duration::from_secs(40)).await;
        assert!(sign_in.redeem(&code).is_ok(), "the right one was not used up");
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_expire_end_with_the_token_and_are_bounded() {
        let sign_in = sign_in();
        let begin = || {
            let code = sign_in.issue_code();
            sign_in.redeem(&code).expect("it is right")
        };
        let token = begin();
        advance(SESSION_IDLE_TIMEOUT - Duration::from_secs(1)).await;
        assert!(sign_in.touch_session(token.as_bytes()), "it is used by this");
        advance(SESSION_IDLE_TIMEOUT - Duration::from_secs(1)).await;
        assert!(sign_in.touch_session(token.as_bytes()));
        for _ in 0..SESSIONS {
            advance(ATTEMPT_PERIOD).await;
            begin();
        }
        assert!(!sign_in.touch_session(token.as_bytes()), "the one used longest ago made room");
        let token = begin_after(&sign_in).await;
        sign_in.clear();
        assert!(!sign_in.touch_session(token.as_bytes()));
        let token = begin_after(&sign_in).await;
        advance(SESSION_IDLE_TIMEOUT).await;
        assert!(!sign_in.touch_session(token.as_bytes()));
    }

    async fn begin_after(sign_in: &BrowserSignIn) -> String {
        advance(ATTEMPT_PERIOD).await;
        let code = sign_in.issue_code();
        sign_in.redeem(&code).expect("it is right")
    }
}
