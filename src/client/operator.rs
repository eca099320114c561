//! A client of a running proxy's admin address, for the commands.

use super::{
    Error,
    http_transport::{HttpTransport, LineReader},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, uri::PathAndQuery};
use hyper::body::Incoming;
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use serde::Deserialize;
use serde_json::Value;
use std::{fs, net::IpAddr, path::Path};

/// A client of a proxy's admin address.
#[derive(Clone, Debug)]
pub struct AdminClient {
    /// The admin address, without a path.
    base: Uri,
    headers: HeaderMap,
    /// Whether to read the token from the proxy's token file on this machine if the proxy requires one.
    can_find_token: bool,
}

/// Path of the file with the proxy's generated token, and a proof that the proxy knows its content.
#[derive(Deserialize)]
struct TokenLocation {
    file: String,
    proof: String,
}

/// Prefix of the data that the proof signs; the same as in `admin/generated_token.rs`.
const PROOF_PREFIX: &[u8] = b"deferral admin token\0";
/// Largest token file in bytes; a longer file holds something else.
const MAX_TOKEN_FILE: u64 = 1 << 10;

// === impl AdminClient ===

impl AdminClient {
    /// Creates a client. `base` is the address without a path; `token` is needed for changes, and for
    /// everything if the address is not on loopback. Without `token`, that of a proxy on this machine is read
    /// from the proxy's token file.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a token that no header can carry, or that would be sent unencrypted over a
    /// network.
    pub fn new(base: Uri, token: Option<&str>) -> Result<Self, Error> {
        let is_local = is_loopback(&base);
        if token.is_some() && !is_local && base.scheme_str() == Some("http") {
            let error = format!(
                "the admin token is not sent to {base} over plain HTTP, where others can read it: use https:// (`admin.tls` of the proxy), or a tunnel to an address of this machine"
            );
            return Err(Error::Invalid(error));
        }
        let headers = token.map(bearer_headers).transpose()?.unwrap_or_default();
        Ok(Self { base, headers, can_find_token: token.is_none() && is_local })
    }

    /// Creates a client without a token; health checks need none.
    pub fn for_health_checks(base: Uri) -> Self {
        Self { base, headers: HeaderMap::new(), can_find_token: false }
    }

    /// Gets the resource at this path, which may have a query.
    ///
    /// # Errors
    /// [`Error`]; if the proxy gives a reason, [`Error::Status`] has its text.
    pub async fn get(&self, path: &str) -> Result<Bytes, Error> {
        self.request(Method::GET, path).await
    }

    /// Posts to this path, without a body, and returns the body of the response.
    ///
    /// # Errors
    /// The same as for [`AdminClient::get`].
    pub async fn post(&self, path: &str) -> Result<Bytes, Error> {
        self.request(Method::POST, path).await
    }

    /// Gets the lines of the resource at this path, as they arrive.
    ///
    /// # Errors
    /// The same as for [`AdminClient::get`].
    pub async fn lines(&self, path: &str) -> Result<LineReader, Error> {
        let (transport, body) = self.open(Method::GET, path).await?;
        Ok(transport.lines(body))
    }

    async fn request(&self, method: Method, path: &str) -> Result<Bytes, Error> {
        let (transport, body) = self.open(method, path).await?;
        transport.read_body(body).await
    }

    /// Sends a request, and returns the unread body of its response.
    async fn open(&self, method: Method, path: &str) -> Result<(HttpTransport, Incoming), Error> {
        match self.send(method.clone(), path, self.headers.clone()).await {
            // A 401 means that nothing was done: retry with the token.
            Err(Error::Status { status: StatusCode::UNAUTHORIZED, detail }) if self.can_find_token => {
                match self.find_token().await {
                    Some(token) => self.send(method, path, bearer_headers(&token)?).await,
                    None => Err(Error::Status { status: StatusCode::UNAUTHORIZED, detail }),
                }
            }
            outcome => outcome,
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
    ) -> Result<(HttpTransport, Incoming), Error> {
        let mut parts = self.base.clone().into_parts();
        let path = PathAndQuery::try_from(path);
        parts.path_and_query = Some(path.map_err(|error| Error::Invalid(error.to_string()))?);
        let url = Uri::from_parts(parts).map_err(|error| Error::Invalid(error.to_string()))?;
        let transport = HttpTransport::new(url, headers);
        let (head, body) = transport.send(method, String::new(), HeaderMap::new()).await?.into_parts();
        match head.status {
            StatusCode::OK => Ok((transport, body)),
            status => Err(Error::Status { status, detail: error_detail(&transport.read_body(body).await?) }),
        }
    }

    /// Returns the token in the file that the proxy names, if the proxy proves that it knows the file's
    /// content. Any user of this machine may listen at the address: without the proof no token is sent.
    async fn find_token(&self) -> Option<String> {
        let mut nonce = [0; 32];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let nonce = hex(&nonce);
        let path = format!("/token?nonce={nonce}");
        let (transport, body) = self.send(Method::GET, &path, HeaderMap::new()).await.ok()?;
        let response = transport.read_body(body).await.ok()?;
        let TokenLocation { file, proof } = serde_json::from_slice(&response).ok()?;
        let token = read_token(Path::new(&file))?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
        let data = [PROOF_PREFIX, nonce.as_bytes()].concat();
        hmac::verify(&key, &data, &unhex(&proof)?).ok()?;
        Some(token)
    }
}

fn bearer_headers(token: &str) -> Result<HeaderMap, Error> {
    let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
        Error::Invalid("the admin token has characters that are not valid in a header".to_owned())
    })?;
    bearer.set_sensitive(true);
    Ok(HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]))
}

/// Whether an address is on loopback, without a name lookup: the result of a lookup cannot be trusted.
fn is_loopback(base: &Uri) -> bool {
    let host = base.host().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Reads a regular file of at most [`MAX_TOKEN_FILE`] bytes; `None` for any other file.
fn read_token(path: &Path) -> Option<String> {
    // Opening another kind of file could block.
    let metadata =
        fs::metadata(path).ok().filter(|found| found.is_file() && found.len() <= MAX_TOKEN_FILE)?;
    let text = fs::read_to_string(path).ok().filter(|_| metadata.len() > 0)?;
    Some(text.trim().to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits =
        text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    digits.collect()
}

/// Returns the error message in a response of the proxy, if any; for `/ready`, its status.
fn error_detail(body: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(body).ok();
    let message =
        message.as_ref().and_then(|body| body["error"].as_str().or_else(|| body["status"].as_str()));
    message.map_or_else(String::new, |message| format!(": {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_sent_over_plain_http_off_loopback() {
        for (base, is_sent) in [
            ("http://127.0.0.1:8809", true),
            ("http://localhost:8809", true),
            ("http://[::1]:8809", true),
            ("http://127.8.9.1", true),
            ("https://proxy.example.com:8809", true),
            ("http://proxy.example.com:8809", false),
            ("http://10.0.0.7:8809", false),
            ("http://0.0.0.0:8809", false),
            ("http://localhost.example.com", false),
            ("http://127.0.0.1.example.com", false),
            ("http://127.0.0.1@example.com", false),
        ] {
            let base: Uri = base.parse().expect("a URL");
            let operator = AdminClient::new(base.clone(), Some("0123456789abcdef"));
            assert_eq!(operator.is_ok(), is_sent, "{base}");
            assert!(operator.is_ok() || AdminClient::new(base, None).is_ok_and(|it| !it.can_find_token));
        }
    }
}
