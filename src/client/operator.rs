//! A proxy's own address for operators, as its commands ask it.

use super::{Error, wire::Wire};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, uri::PathAndQuery};
use serde_json::Value;

/// The operator's address of a proxy.
#[derive(Clone, Debug)]
pub struct Operator {
    base: Uri,
    headers: HeaderMap,
}

// === impl Operator ===

impl Operator {
    /// `base` is the address without a path; `token` is needed for changes, and for all where the address is not this
    /// machine's own.
    ///
    /// # Errors
    /// [`Error::Invalid`] of a token that no header can carry.
    pub fn new(base: Uri, token: Option<&str>) -> Result<Self, Error> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
                Error::Invalid("the token has characters that no header can carry".to_owned())
            })?;
            bearer.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, bearer);
        }
        Ok(Self { base, headers })
    }

    /// What is at this path, with its query.
    ///
    /// # Errors
    /// [`Error`]; where the proxy says why not, [`Error::Status`] with its words.
    pub async fn get(&self, path: &str) -> Result<Bytes, Error> {
        self.ask(Method::GET, path).await
    }

    /// Changes what is at this path.
    ///
    /// # Errors
    /// As [`Operator::get`].
    pub async fn post(&self, path: &str) -> Result<Bytes, Error> {
        self.ask(Method::POST, path).await
    }

    async fn ask(&self, method: Method, path: &str) -> Result<Bytes, Error> {
        let mut parts = self.base.clone().into_parts();
        let path = PathAndQuery::try_from(path);
        parts.path_and_query = Some(path.map_err(|error| Error::Invalid(error.to_string()))?);
        let url = Uri::from_parts(parts).map_err(|error| Error::Invalid(error.to_string()))?;
        let wire = Wire::new(url, self.headers.clone());
        let (head, body) = wire.send(method, String::new(), HeaderMap::new()).await?.into_parts();
        let body = wire.whole(body).await?;
        match head.status {
            StatusCode::OK => Ok(body),
            status => Err(Error::Status { status, detail: said(&body) }),
        }
    }
}

/// What the proxy says of an error, if it does; `/ready` says what it is instead.
fn said(body: &[u8]) -> String {
    let said = serde_json::from_slice::<Value>(body).ok();
    let said = said.as_ref().and_then(|body| body["error"].as_str().or_else(|| body["status"].as_str()));
    said.map_or_else(String::new, |said| format!(": {said}"))
}
