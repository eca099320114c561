//! `/session` and `/token`: how the admin page and local commands get a token.

use super::{
    response::{AdminResponse, error_response, json_response},
    server::AdminParts,
    sign_in::CodeError,
};
use http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use serde::Deserialize;
use serde_json::json as value;

/// Allowed number of hexadecimal digits of a nonce.
const NONCE_DIGITS: std::ops::RangeInclusive<usize> = 32..=128;

#[derive(Deserialize)]
struct CodeRequest<'a> {
    code: &'a str,
}

/// Exchanges the one-time code in the body for a session token: the handler of `/session`.
pub(super) fn redeem_code(parts: &AdminParts, body: &[u8]) -> AdminResponse {
    let Ok(CodeRequest { code }) = serde_json::from_slice(body) else {
        return error_response(
            StatusCode::BAD_REQUEST,
            "the body must be `{\"code\": \"…\"}`, with the code of the link",
        );
    };
    match parts.sign_in.redeem(code) {
        Ok(token) => json_response(StatusCode::OK, value!({ "token": token }).to_string().into()),
        Err(error @ CodeError::InvalidCode) => error_response(StatusCode::FORBIDDEN, &error.to_string()),
        Err(error @ CodeError::TooManyAttempts { wait }) => {
            let mut response = error_response(StatusCode::TOO_MANY_REQUESTS, &error.to_string());
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
            response
        }
    }
}

/// Responds with the path of the file with the generated token, and with a proof over the client's nonce that
/// this proxy knows the token, so that a command sends the token to no other process: the handler of
/// `/token`.
pub(super) fn token_file(parts: &AdminParts, query: &str) -> AdminResponse {
    let nonce = query.strip_prefix("nonce=").filter(|nonce| {
        NONCE_DIGITS.contains(&nonce.len()) && nonce.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    let Some(nonce) = nonce else {
        let error =
            format!("`nonce` must be {} to {} hexadecimal digits", NONCE_DIGITS.start(), NONCE_DIGITS.end());
        return error_response(StatusCode::BAD_REQUEST, &error);
    };
    match parts.generated_token.path() {
        Ok(path) => {
            let proof = parts.generated_token.proof(nonce);
            let body = value!({ "file": path.to_string_lossy(), "proof": proof });
            json_response(StatusCode::OK, body.to_string().into())
        }
        Err(_) => {
            error_response(StatusCode::NOT_FOUND, "no token was generated at start and written to a file")
        }
    }
}
